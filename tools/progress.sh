# Sourced by the other scripts: one moving line for a long step on a terminal, a plain line every ten seconds elsewhere.
# shellcheck shell=bash

# "75 s" as 1m15s.
duration() {
  local s=$1
  if ((s >= 60)); then printf '%dm%02ds' $((s / 60)) $((s % 60)); else printf '%ds' "$s"; fi
}

# progress LABEL COMMAND...: runs the command with its output in a log. Ninja's "[done/total]" becomes a percentage. Shows nothing when
# it takes under two seconds; on failure prints the part of the log that matters and returns the command's status.
progress() {
  local label=$1
  shift
  local log start=$SECONDS shown=$SECONDS drawn=0 live=0 line='' part='' at='' rc=0 fd pid
  log=$(mktemp "${TMPDIR:-/tmp}/kvtide-log.XXXXXX")
  if [[ -t 1 && ${TERM:-dumb} != dumb ]]; then live=1; fi

  exec {fd}< <(NINJA_STATUS='[%f/%t] ' "$@" 2>&1 </dev/null)
  pid=$!
  while true; do
    if IFS= read -r -t 1 -u "$fd" line; then
      line=$part$line part=''
      printf '%s\n' "$line" >>"$log"
      if [[ $line =~ ^\[([0-9]+)/([0-9]+)\] ]]; then
        at=$((100 * BASH_REMATCH[1] / BASH_REMATCH[2]))"% (${BASH_REMATCH[1]} of ${BASH_REMATCH[2]})"
      fi
    elif (($? > 128)); then
      part+=$line  # nothing new for a second, maybe half a line
    else
      if [[ -n $part$line ]]; then printf '%s\n' "$part$line" >>"$log"; fi
      break
    fi
    if ((live && SECONDS - start >= 2 && SECONDS != shown)); then
      printf '\r\033[K%s  %s  %s' "$label" "$at" "$(duration $((SECONDS - start)))"
      shown=$SECONDS drawn=1
    elif ((!live && SECONDS - shown >= 10)); then
      printf '%s  %s  %s\n' "$label" "$at" "$(duration $((SECONDS - start)))"
      shown=$SECONDS
    fi
  done
  exec {fd}<&-
  wait "$pid" || rc=$?

  if ((drawn)); then printf '\r\033[K'; fi
  if ((rc != 0)); then
    printf '%s  failed after %s:\n' "$label" "$(duration $((SECONDS - start)))"
    if grep -q '^FAILED:' "$log"; then
      sed -n '/^FAILED:/,$p' "$log" | head -n 120
    else
      tail -n 60 "$log"
    fi
    printf '(whole output: %s)\n' "$log"
    return "$rc"
  fi
  rm -f "$log"
  if ((SECONDS - start >= 2)); then printf '%s  done in %s\n' "$label" "$(duration $((SECONDS - start)))"; fi
}
