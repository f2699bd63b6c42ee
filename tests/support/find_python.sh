# Prints the path of the Python whose version is $1 (for example 3.12): from PATH, else from pyenv.
if path=$("python$1" -c 'import sys; print(sys.executable)' 2>/dev/null); then
    echo "$path"
    exit 0
fi
for path in "${PYENV_ROOT:-$HOME/.pyenv}"/versions/"$1".*/bin/python3; do
    if [ -x "$path" ]; then
        echo "$path"
        exit 0
    fi
done
exit 1
