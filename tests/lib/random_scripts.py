#!/usr/bin/env python3
"""Random scripts: the model and the C tree must print the same lines.

    random_scripts.py MODEL DRIVER SEEDS [FIRST_SEED] [OPTIONS OF THE DRIVER]

MODEL is the folder of the executable model, DRIVER the program built from script.c.  The model's own generator makes
the calls; they are written down in the model's script format, run by the model, and run by the driver.
"""
import os
import subprocess
import sys
import tempfile

BATCH = 50


def words_of(tokens):
    return ','.join(map(str, tokens)) or '-'


class Recorder:
    """Writes the calls of one random script down as commands.  Labels are handles."""

    def __init__(self, fuzz):
        c = fuzz.cache
        self.lines = ['cache %d %d %d %d%s' % (len(c.slots), c.c, c.granule, c.layers,
                                               '' if c.retain else ' no_retain')]
        self.last = 0

    @staticmethod
    def label(handle):
        return 'S%d' % handle

    def new_label(self, made):
        self.last += made
        return self.label(self.last if made else 0)

    def record(self, name, arguments, status):
        method = getattr(self, 'do_' + name, None)
        self.lines.append(method(status, *arguments) if method else ' '.join(
            [name.replace('step_', '')] + [str(word) for word in arguments]))

    def do_open(self, status, name, tokens):
        return 'open %s %s %s' % (name, self.new_label(status == 'OK'), words_of(tokens))

    def do_fork(self, status, handle):
        return 'fork %s %s' % (self.label(handle), self.new_label(status == 'OK'))

    def do_truncate(self, _, handle, n):
        return 'truncate %s %d' % (self.label(handle), n)

    def do_close(self, _, handle):
        return 'close %s' % self.label(handle)

    def do_pin(self, _, name, tokens):
        return 'pin %s %s' % (name, words_of(tokens))

    def do_unpin(self, _, name, tokens):
        return 'unpin %s %s' % (name, words_of(tokens))

    def do_step_begin(self, _, items):
        return ' '.join(['begin'] + ['%s:%d:%s' % (self.label(handle), rows, words_of(tokens))
                                     for handle, tokens, rows in items])

    def do_step_end(self, _):
        return 'end_now'


def random_script(fuzz_module, seed):
    fuzz = fuzz_module.Fuzz(seed)
    recorder = Recorder(fuzz)

    def call(name, *arguments):
        try:
            status, value = 'OK', getattr(fuzz.cache, name)(*arguments)
        except fuzz_module.Refused as refused:
            status, value = refused.args[0], None
        recorder.record(name, arguments, status)
        return status, value

    fuzz.call = call
    fuzz.run(150)
    recorder.lines.append('stats')
    return recorder.lines


def expected_lines(model, lines):
    script, out = None, []
    for line in lines:
        words = line.split()
        if words[0] == 'cache':
            script = model.Script(words[1:])
        else:
            out.append(script.run(words))
    return out


def compare(lines, expected, driver):
    with tempfile.NamedTemporaryFile('w', suffix='.txt', delete=False) as file:
        file.write('\n'.join(lines) + '\n')
    run = subprocess.run(driver + [file.name], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    actual = run.stdout.splitlines()
    if run.returncode == 0 and actual == expected:
        os.unlink(file.name)
        return True
    for n, line in enumerate(actual + ['(no line)']):
        if n >= len(expected) or line != expected[n]:
            print('line %d of %s\nmodel:  %s\ndriver: %s' % (
                n + 1, file.name, expected[n] if n < len(expected) else '(no line)', line))
            break
    print('exit status', run.returncode)
    return False


def main():
    sys.path.insert(0, sys.argv[1])
    sys.dont_write_bytecode = True
    import fuzz as fuzz_module
    import model
    driver, seeds = [sys.argv[2]] + sys.argv[5:], int(sys.argv[3])
    first = int(sys.argv[4]) if len(sys.argv) > 4 else 1
    n_calls = 0
    for begin in range(first, first + seeds, BATCH):
        lines, expected = [], []
        for seed in range(begin, min(begin + BATCH, first + seeds)):
            script = random_script(fuzz_module, seed)
            lines += script
            expected += expected_lines(model, script)
        n_calls += len(expected)
        if not compare(lines, expected, driver):
            sys.exit(1)
    print('%d scripts, %d calls: equal' % (seeds, n_calls))


if __name__ == '__main__':
    main()
