#define _DEFAULT_SOURCE   1
#define _FILE_OFFSET_BITS 64
#include "failing_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static size_t fail_at, count, spoil_at, n_reads, turn;
static const char *failed_call;
static bool slow;

static bool fails(const char *call)
{
    if (++count != fail_at)
        return false;
    failed_call = call;
    errno = EIO;
    return true;
}

void failing_file_set(size_t n)
{
    fail_at = n;
    count = 0;
}

bool failing_file_hit(void)
{
    return fail_at && count >= fail_at;
}

const char *failing_file_call(void)
{
    return failed_call;
}

void failing_file_spoil(size_t n)
{
    spoil_at = n;
    n_reads = 0;
}

bool failing_file_spoilt(void)
{
    return spoil_at && n_reads >= spoil_at;
}

void failing_file_slow(bool on)
{
    slow = on;
}

static bool interrupted(void)
{
    if (!slow || ++turn % 2)
        return false;
    errno = EINTR;
    return true;
}

static size_t some_of(size_t n)
{
    size_t some = 1 + turn % 7;
    return slow && n > some ? some : n;
}

static ssize_t do_write(int file, const void *data, size_t n)
{
    return fails("write") || interrupted() ? -1 : write(file, data, some_of(n));
}

static ssize_t do_pread(int file, void *data, size_t n, off_t offset)
{
    ssize_t got = fails("pread") || interrupted() ? -1 : pread(file, data, some_of(n), offset);
    if (got > 0 && ++n_reads == spoil_at)
        ((unsigned char *)data)[got / 2] ^= 0x10;
    return got;
}

/* It is closed all the same. */
static int do_close(int file)
{
    int status = close(file);
    return fails("close") ? -1 : status;
}

#define open(path, flags)            (fails("open") ? -1 : (open)(path, flags))
#define mkstemp(name)                (fails("mkstemp") ? -1 : (mkstemp)(name))
#define fstat(file, status)          (fails("fstat") ? -1 : (fstat)(file, status))
#define fsync(file)                  (fails("fsync") ? -1 : (fsync)(file))
#define rename(from, to)             (fails("rename") ? -1 : (rename)(from, to))
#define write(file, data, n)         do_write(file, data, n)
#define pread(file, data, n, offset) do_pread(file, data, n, offset)
#define close(file)                  do_close(file)

#include "../../lib/file.c"
