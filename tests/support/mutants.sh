# Read by the mutants.sh of a kernel, which has list() and try() of its own and a folder $work.

# One line of a list of mutants: a name, what try() takes beside it.
m() {
    tab=$(printf '\t')
    (IFS=$tab && printf '%s\n' "$*")
}

# mutate FILE OCCURRENCE PATTERN REPLACEMENT: the file with the change, or a failure if there is no such line.
mutate() {
    n=$2 pattern=$3 replacement=$4 awk '
        $0 ~ ENVIRON["pattern"] && ++count == ENVIRON["n"] {
            match($0, ENVIRON["pattern"])
            $0 = substr($0, 1, RSTART - 1) ENVIRON["replacement"] substr($0, RSTART + RLENGTH)
            done = 1
        }
        { print }
        END { exit !done }' "$1"
}

# try_all NAME...: each mutant of the list, or those that are named; fails if one did.
try_all() {
    wanted=" $* " failed=0
    list > "$work/list"
    while IFS="$(printf '\t')" read -r name a b c d e; do
        case $wanted in
        "  " | *" $name "*) try "$name" "$a" "$b" "$c" "$d" "$e" </dev/null || failed=1 ;;
        esac
    done < "$work/list"
    return $failed
}
