#!/usr/bin/env bash
# Checks of the tree that no linter makes. Prints every fault it finds, not only the first.
# Usage: hack/check-tree.sh
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
faults=0
fault() { # fault TITLE LINES: report the lines, if there are any
  [[ -z $2 ]] && return
  printf '%s\n%s\n\n' "$1" "$2" >&2
  faults=1
}

# With an __init__.py the folder `operator` would take the place of the standard module: nothing could start.
fault "Source roots and test folders are not packages; remove:" \
  "$(git ls-files --cached --others --exclude-standard -- {api,operator,trainer}/__init__.py 'tests/**/__init__.py' tests/__init__.py)"
fault "No module may lie directly in a source root (put it into a package):" \
  "$(git ls-files --cached --others --exclude-standard -- ':(glob)api/*.py' ':(glob)operator/*.py' ':(glob)trainer/*.py')"

syntax=""
while IFS= read -r script; do
  [[ -f $script ]] || continue
  message=$(bash -n "$script" 2>&1) || syntax+="$message"$'\n'
done < <(git grep -lE --untracked '^#!.*\bbash$' -- ':!*.md')
fault "Shell scripts with a syntax error:" "${syntax%$'\n'}"

# Where packages come from is the installing machine's setting, and no path of one machine belongs into the tree.
# Each pattern keeps one character in brackets, so that it does not find itself.
hosts='pypi[.]org|pythonhosted[.]org|download[.]pytorch[.]org|proxy[.]golang[.]org|registry[.]npmjs[.]org|crates[.]io|(deb|security|snapshot)[.]debian[.]org'
paths='/opt/[w]heels|(^|[[:space:]"'"'"'=:(])/([w]ork|[r]oot)/'
index='^[[:space:]]*(-i|-f|--index-url|--extra-index-url|--find-links|--trusted-host)[[:space:]=]'
fault "Hosts of package registries:" "$(git grep -nIE --untracked "$hosts" || true)"
fault "Paths of one machine:" "$(git grep -nIE --untracked "$paths" || true)"
fault "Requirement files that say where packages come from:" "$(git grep -nIE --untracked "$index" -- requirements || true)"
exit "$faults"
