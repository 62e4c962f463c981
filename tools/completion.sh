# Completion of `python -m pipeline` in bash:  . tools/completion.sh
# Other uses of python complete as before. A press of the key takes about a second: Hydra reads the
# configuration, so that what it offers fits what was typed before (criteria=additive criteria.t=).

_pipeline_complete() {
    local line="${COMP_LINE:0:COMP_POINT}" word found
    COMPREPLY=()
    [[ $line =~ ^[^[:space:]]*python[0-9.]*[[:space:]]+-m[[:space:]]+pipeline[[:space:]] ]] || return
    word="${line##*[[:space:]]}"
    case $word in
    stage=*) found=$(printf 'stage=%s\n' prompts distributions certificates run_lengths drafts \
        acceptance decoding accuracy report) ;;
    *) found=$(COMP_LINE="pipeline ${line#"${BASH_REMATCH[0]}"}" \
        "${COMP_WORDS[0]}" -m pipeline -sc query=bash 2>/dev/null) ;;
    esac
    COMPREPLY=($(compgen -W "$found" -- "$word"))
    [[ ${#COMPREPLY[@]} == 1 && ${COMPREPLY[0]} == *[=.] ]] && compopt -o nospace
    # bash replaces what follows the last of its word breaks only
    [[ $word == *=* && $COMP_WORDBREAKS == *=* ]] && COMPREPLY=("${COMPREPLY[@]#"${word%"${word##*=}"}"}")
}

complete -o default -F _pipeline_complete python python3 .venv/bin/python
