#define _DEFAULT_SOURCE   1
#define _DARWIN_C_SOURCE  1
#define _FILE_OFFSET_BITS 64
#include "file.h"

#include "chunkattention.h"
#include "memory.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#define BUFFER_BYTES ((size_t)1 << 16)
#define CRC_BYTES    4
#define SUFFIX       ".tmpXXXXXX"

/* n is at most BUFFER_BYTES: zlib counts in unsigned int. */
static uint32_t add_to_crc(uint32_t crc, const unsigned char *data, size_t n)
{
    return (uint32_t)crc32(crc, data, (uInt)n);
}

static size_t least(uint64_t a, size_t b)
{
    return a < b ? (size_t)a : b;
}

/* For what is given up: errno stays that of the failure before. */
static void close_quietly(int file)
{
    int before = errno;
    if (file >= 0)
        close(file);
    errno = before;
}

/* ---- output */

static bool is_taken(const char *path)
{
    struct stat status;
    return !stat(path, &status) && !S_ISREG(status.st_mode);
}

static int open_folder(char *path)
{
    char *slash = strrchr(path, '/');
    if (!slash)
        return open(".", O_RDONLY | O_CLOEXEC);
    char after = slash[1];
    slash[1] = 0;
    int folder = open(path, O_RDONLY | O_CLOEXEC);
    slash[1] = after;
    return folder;
}

static void release(struct cattn_output *output)
{
    close_quietly(output->file);
    close_quietly(output->folder);
    cattn_free(output->temporary);
    cattn_free(output->buffer);
}

/* mkstemp creates it, under a name that was free, for its owner alone. */
static int create(struct cattn_output *output)
{
    size_t n = strlen(output->path);
    memcpy(output->temporary, output->path, n);
    memcpy(output->temporary + n, SUFFIX, sizeof(SUFFIX));
    output->folder = open_folder(output->temporary);
    if (output->folder < 0)
        return CATTN_EIO;
    output->file = mkstemp(output->temporary);
    if (output->file < 0)
        return CATTN_EIO;
    fcntl(output->file, F_SETFD, FD_CLOEXEC);
    return CATTN_OK;
}

int cattn_output_create(struct cattn_output *output, const char *path)
{
    if (is_taken(path))
        return CATTN_EINVAL;
    *output = (struct cattn_output){.file = -1,
                                    .folder = -1,
                                    .path = path,
                                    .temporary = cattn_malloc(strlen(path) + sizeof(SUFFIX), 1),
                                    .buffer = cattn_malloc(BUFFER_BYTES, 1)};
    int status = output->temporary && output->buffer ? create(output) : CATTN_ENOMEM;
    if (status)
        release(output);
    return status;
}

static int flush(struct cattn_output *output)
{
    for (size_t done = 0; done < output->n;) {
        ssize_t n = write(output->file, output->buffer + done, output->n - done);
        if (n < 0 && errno != EINTR)
            return CATTN_EIO;
        done += n > 0 ? (size_t)n : 0;
    }
    output->n = 0;
    return CATTN_OK;
}

static int put(struct cattn_output *output, const unsigned char *data, size_t n)
{
    if (output->n + n > BUFFER_BYTES && flush(output))
        return CATTN_EIO;
    memcpy(output->buffer + output->n, data, n);
    output->n += n;
    return CATTN_OK;
}

int cattn_output_write(struct cattn_output *output, const void *data, size_t n)
{
    for (const unsigned char *bytes = data; n;) {
        size_t part = least(n, BUFFER_BYTES);
        if (put(output, bytes, part))
            return CATTN_EIO;
        output->crc = add_to_crc(output->crc, bytes, part);
        bytes += part;
        n -= part;
    }
    return CATTN_OK;
}

int cattn_output_end_section(struct cattn_output *output)
{
    unsigned char bytes[CRC_BYTES];
    memcpy(bytes, &output->crc, CRC_BYTES);
    return put(output, bytes, CRC_BYTES);
}

/* A file system that cannot do this to a folder says EINVAL. */
static bool sync_folder(int folder)
{
    return !fsync(folder) || errno == EINVAL;
}

/* Some file systems tell of failed writes only when the file is closed. */
static bool close_output(struct cattn_output *output)
{
    int file = output->file;
    output->file = -1;
    return !close(file) || errno == EINTR;
}

int cattn_output_commit(struct cattn_output *output)
{
    if (flush(output) || fsync(output->file) || !close_output(output) || rename(output->temporary, output->path)) {
        cattn_output_discard(output);
        return CATTN_EIO;
    }
    int status = sync_folder(output->folder) ? CATTN_OK : CATTN_EIO;
    release(output);
    return status;
}

void cattn_output_discard(struct cattn_output *output)
{
    int before = errno;
    unlink(output->temporary);
    errno = before;
    release(output);
}

/* ---- input */

/* A pipe must not be waited for. */
int cattn_input_open(struct cattn_input *input, const char *path)
{
    struct stat status;
    int file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (file < 0)
        return CATTN_EIO;
    int failed = fstat(file, &status) ? CATTN_EIO : S_ISREG(status.st_mode) ? CATTN_OK : CATTN_EINVAL;
    unsigned char *buffer = failed ? NULL : cattn_malloc(BUFFER_BYTES, 1);
    if (!buffer) {
        close_quietly(file);
        return failed ? failed : CATTN_ENOMEM;
    }
    *input = (struct cattn_input){.file = file, .length = (uint64_t)status.st_size, .buffer = buffer};
    return CATTN_OK;
}

void cattn_input_close(struct cattn_input *input)
{
    close_quietly(input->file);
    cattn_free(input->buffer);
}

static int fill(struct cattn_input *input)
{
    ssize_t n;
    do
        n = pread(input->file, input->buffer, BUFFER_BYTES, (off_t)input->offset);
    while (n < 0 && errno == EINTR);
    if (n <= 0)
        return n ? CATTN_EIO : CATTN_EFORMAT;
    input->offset += (uint64_t)n;
    input->begin = 0;
    input->end = (size_t)n;
    return CATTN_OK;
}

static int get(struct cattn_input *input, unsigned char *data, size_t n)
{
    while (n) {
        int status = input->begin == input->end ? fill(input) : CATTN_OK;
        if (status)
            return status;
        size_t part = least(n, input->end - input->begin);
        memcpy(data, input->buffer + input->begin, part);
        input->begin += part;
        data += part;
        n -= part;
    }
    return CATTN_OK;
}

int cattn_input_read(struct cattn_input *input, void *data, size_t n)
{
    for (unsigned char *bytes = data; n;) {
        size_t part = least(n, BUFFER_BYTES);
        int status = get(input, bytes, part);
        if (status)
            return status;
        input->crc = add_to_crc(input->crc, bytes, part);
        bytes += part;
        n -= part;
    }
    return CATTN_OK;
}

int cattn_input_end_section(struct cattn_input *input)
{
    uint32_t crc = 0;
    unsigned char bytes[CRC_BYTES];
    int status = get(input, bytes, CRC_BYTES);
    memcpy(&crc, bytes, CRC_BYTES);
    return status ? status : crc == input->crc ? CATTN_OK : CATTN_EFORMAT;
}

void cattn_input_seek(struct cattn_input *input, uint64_t offset, uint32_t crc)
{
    input->offset = offset;
    input->begin = input->end = 0;
    input->crc = crc;
}
