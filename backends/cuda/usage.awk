# From what ptxas -v says: a line for each kernel and target.  Shared memory is what is known at compile time, which for
# these kernels is none: theirs is asked for at the launch.
/Compiling entry function/ {
    match($0, /_Z[0-9]*[A-Za-z0-9_]*/)
    name = substr($0, RSTART, RLENGTH)
    sub(/^_ZL?[0-9]+/, "", name)
    sub(/(Ev)?[0-9]+[a-z_]+$/, "", name)
    if (match(name, /I[0-9]*[A-Za-z]+[0-9]+(Li[0-9]+E)?E?$/)) {
        arguments = substr(name, RSTART + 1)
        name = substr(name, 1, RSTART - 1)
        gsub(/^[0-9]|E/, "", arguments)
        sub(/Li/, ", ", arguments)
        name = name "<" arguments ">"
    }
    target = $NF
    gsub(/'/, "", target)
}
/bytes stack frame/ { stack = $1; spilled = $5 + $9 }
/Used [0-9]+ registers/ {
    match($0, /[0-9]+ registers/)
    registers = substr($0, RSTART, RLENGTH)
    shared = match($0, /[0-9]+ bytes smem/) ? substr($0, RSTART, RLENGTH) : "0 bytes smem"
    printf "%-6s %-28s %-14s %-14s %d bytes of stack, %d bytes spilled\n", target, name, registers, shared, stack, spilled
}
