#compdef leasehold
# zsh completion for leasehold, printed by `leasehold completion zsh`.

# The names of held leases. leasehold gives up after a second.
_leasehold_names() {
    local -a names
    local url=${${(Q)opt_args[--url]}//\\:/:} namespace=${(Q)opt_args[--namespace]}
    names=("${(@f)$(
        LEASEHOLD_URL=${url:-$LEASEHOLD_URL} leasehold completion names --namespace "$namespace" -- "${(Q)PREFIX}" 2>/dev/null
    )}")
    compadd -M 'r:|:=*' -a names
}

# What follows NAME and "--", or NAME and the first word of COMMAND, as if it was typed without leasehold.
_leasehold_command() {
    local before=1
    [[ $words[2] == -- ]] && before=2
    shift $before words
    ((CURRENT -= before))
    if ((CURRENT == 1)); then
        _command_names -e
    else
        _normal
    fi
}

_leasehold() {
    local curcontext=$curcontext state line ret=1
    local -A opt_args
    local -a subcommands=(
@COMMANDS@
    )
    _arguments -C -s \
@MAIN@
        '(-): :->command' \
        '(-)*:: :->words' && ret=0
    case $state in
    command) _describe -t commands command subcommands && ret=0 ;;
    words)
        case $words[1] in
@CASES@
        esac
        ;;
    esac
    return ret
}

# Sourced, or autoloaded from a folder of $fpath.
if [[ $funcstack[1] == _leasehold ]]; then
    _leasehold "$@"
else
    compdef _leasehold leasehold
fi
