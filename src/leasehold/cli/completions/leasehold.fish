# fish completion for leasehold, printed by `leasehold completion fish`.

function __leasehold_takes_value --argument-names command option
    contains -- "$command $option" @VALUES@
end

# What comes before the cursor: the command (or "-"), the number of plain words after it, where COMMAND begins (0: not
# yet), and the options --url and --namespace, one a line.
function __leasehold_scan
    set -l words (commandline -opc)
    set -l command ''
    set -l option ''
    set -l plain 0
    set -l options_end 0
    set -l rest 0
    set -l store
    for i in (seq 2 (count $words))
        set -l word $words[$i]
        if test -n "$option"
            contains -- $option --url --namespace; and set -a store "$option=$word"
            set option ''
        else if string match -qr -- '^-.' $word; and test "$word" != --; and test $options_end = 0
            string match -qr -- '^--(url|namespace)=' $word; and set -a store $word
            __leasehold_takes_value "$command" $word; and set option $word
        else if test -z "$command"
            set command $word
        else if contains -- $command @HOLDING@; and test $plain -gt 0
            set rest $i
            test "$word" = --; and set rest (math $i + 1)
            break
        else if test "$word" = --
            set options_end 1
        else
            set plain (math $plain + 1)
        end
    end
    test -n "$command"; or set command -
    printf '%s\n' $command $plain $rest $store
end

# __leasehold_at COMMAND options: COMMAND's options can come next.
# __leasehold_at COMMAND N: its plain word N can come next.
# __leasehold_at COMMAND rest: the words of another command come next.
function __leasehold_at --argument-names command stage
    set -l scan (__leasehold_scan)
    test "$scan[1]" = "$command"; or return 1
    switch $stage
        case options
            test $scan[3] = 0
        case rest
            contains -- $command @HOLDING@; and test $scan[2] -gt 0
        case '*'
            test $scan[3] = 0; and test $scan[2] = (math $stage - 1)
    end
end

function __leasehold_rest
    set -l scan (__leasehold_scan)
    set -l words (commandline -opc)
    if test $scan[3] = 0; or test $scan[3] -gt (count $words)
        complete -C (commandline -ct)
    else
        complete -C (string join ' ' -- (string escape -- $words[$scan[3]..-1]) (commandline -ct))
    end
end

# The names of held leases. leasehold gives up after a second.
function __leasehold_names
    set -l store (__leasehold_scan)[4..-1]
    set -l url (string replace -fr -- '^--url=' '' $store)[-1]
    test -n "$url"; and set -lx LEASEHOLD_URL $url
    leasehold completion names (string match -- '--namespace=*' $store) -- (commandline -ct) 2>/dev/null
end

complete -c leasehold -f
@COMPLETE@
