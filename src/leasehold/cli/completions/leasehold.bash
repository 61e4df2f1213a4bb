# bash completion for leasehold, printed by `leasehold completion bash`. bash 3.2 or later.

# _leasehold_options COMMAND: its options, one a line; of "", those before the command.
_leasehold_options() {
    case $1 in
@OPTIONS@
    esac
}

# _leasehold_takes_value COMMAND OPTION
_leasehold_takes_value() {
    case "$1 $2" in
@VALUES@
    *) return 1 ;;
    esac
}

# _leasehold_choices COMMAND OPTION: the words that the option's value can be, if they can be listed.
_leasehold_choices() {
    case "$1 $2" in
@CHOICES@
    esac
}

# The names of held leases. leasehold gives up after a second.
_leasehold_names() {
    LEASEHOLD_URL=${url:-$LEASEHOLD_URL} leasehold completion names --namespace "$namespace" -- "$cur" 2>/dev/null
}

_leasehold() {
    local IFS=$' \t\n' line=${COMP_LINE:0:${COMP_POINT:-0}} words cur word i
    local command='' option='' plain=0 options_end='' command_at='' url='' namespace=''
    # bash splits words at "=" and ":" too. Split the line at blanks only.
    if [[ $line ]]; then
        read -r -a words <<<"$line"
        [[ $line == *[[:space:]] ]] && words+=('')
    else
        words=("${COMP_WORDS[@]:0:COMP_CWORD+1}")
    fi
    cur=${words[${#words[@]} - 1]}
    for ((i = 1; i < ${#words[@]} - 1; i++)); do
        word=${words[i]}
        case $option$word in
        --url?*) url=${word#--url=} ;;
        --namespace?*) namespace=${word#--namespace=} ;;
        esac
        if [[ $option ]]; then
            option=''
        elif [[ $word == -?* && $word != -- && ! $options_end ]]; then
            _leasehold_takes_value "$command" "$word" && option=$word
        elif [[ ! $command ]]; then
            command=$word
        elif [[ $command == @HOLDING@ && $plain -gt 0 ]]; then
            command_at=$i
            [[ $word == -- ]] && command_at=$((i + 1))
            break
        elif [[ $word == -- ]]; then
            options_end=1
        else
            plain=$((plain + 1))
        fi
    done
    COMPREPLY=()
    IFS=$'\n'
    if [[ $command_at ]]; then
        if ((command_at == ${#words[@]} - 1)); then
            COMPREPLY=($(compgen -c -- "$cur"))
        else
            compopt -o filenames 2>/dev/null
            COMPREPLY=($(compgen -f -- "$cur"))
        fi
        return
    fi
    if [[ $option ]]; then
        COMPREPLY=($(compgen -W "$(_leasehold_choices "$command" "$option")" -- "$cur"))
    elif [[ $cur == --*=* && ! $options_end ]]; then
        word=$(_leasehold_choices "$command" "${cur%%=*}")
        COMPREPLY=($(compgen -P "${cur%%=*}=" -W "$word" -- "${cur#*=}"))
    elif [[ $cur == -* && ! $options_end ]]; then
        COMPREPLY=($(compgen -W "$(_leasehold_options "$command")" -- "$cur"))
    elif [[ ! $command ]]; then
        COMPREPLY=($(compgen -W "$(printf '%s\n' @COMMANDS@)" -- "$cur"))
    elif ((plain == 0)); then
        case $command in
@PLAIN@
        @NAMED@)
            while read -r word; do
                COMPREPLY+=("$(printf %q "$word")")
            done < <(_leasehold_names)
            ;;
        esac
    elif [[ $command == @HOLDING@ ]]; then
        COMPREPLY=($(compgen -c -- "$cur"))
    fi
    # bash inserts only what follows the last "=" or ":" of the word.
    word=${cur%"${cur##*[=:]}"}
    for ((i = 0; i < ${#COMPREPLY[@]}; i++)); do
        COMPREPLY[i]=${COMPREPLY[i]#"$word"}
    done
}

complete -F _leasehold leasehold
