/* Files in sections, each followed by a checksum: the CRC-32 of all bytes of the file before it, checksums left out.
 * So a section is good only behind the sections before which it was written.  CATTN_EIO: errno says why. */
#ifndef CATTN_FILE_H
#define CATTN_FILE_H

#include <stddef.h>
#include <stdint.h>

/* A file that is written beside the one it will replace. */
struct cattn_output {
    int file, folder;
    const char *path;
    char *temporary; /* its name, until it is renamed */
    unsigned char *buffer;
    size_t n; /* bytes in the buffer */
    uint32_t crc;
};

/* Makes a file in the folder of `path`, which is kept and not copied.  CATTN_EINVAL: something that is no regular file
 * is there.  CATTN_EIO, CATTN_ENOMEM.  What was created is committed or discarded. */
int cattn_output_create(struct cattn_output *output, const char *path);

/* CATTN_EIO. */
int cattn_output_write(struct cattn_output *output, const void *data, size_t n);
int cattn_output_end_section(struct cattn_output *output);

/* Puts the file into its place, once it is on the disk, or (CATTN_EIO) discards it. */
int cattn_output_commit(struct cattn_output *output);

/* Removes it.  Leaves errno alone. */
void cattn_output_discard(struct cattn_output *output);

/* A file that is read.  It may change meanwhile: what was checked once is not known to be so the next time. */
struct cattn_input {
    int file;
    uint64_t length;       /* when it was opened */
    uint64_t offset;       /* of the end of the buffer */
    unsigned char *buffer; /* bytes begin .. end - 1 of it come next */
    size_t begin, end;
    uint32_t crc;
};

/* CATTN_EINVAL: it is no regular file.  CATTN_EIO, CATTN_ENOMEM.  What was opened is closed. */
int cattn_input_open(struct cattn_input *input, const char *path);
void cattn_input_close(struct cattn_input *input);

/* CATTN_EFORMAT: the file is shorter; or the checksum is another one.  CATTN_EIO. */
int cattn_input_read(struct cattn_input *input, void *data, size_t n);
int cattn_input_end_section(struct cattn_input *input);

/* To the start of a section.  crc: what it was there. */
void cattn_input_seek(struct cattn_input *input, uint64_t offset, uint32_t crc);

#endif
