# Runs one server and ends it with its owner, who holds the other end of stdin: the end of that
# comes however the owner dies. Each word is answered with a line.
dir=$1 end_with=$2
shift 2
pid=

family() {
    echo "$pid $(cat "/proc/$pid/task/$pid/children")"
}

# The parent first: once it stands still, nobody is born any more.
hold() {
    kill -STOP "$pid"
    while grep -q '^State:.[RSD]' "/proc/$pid/status"; do :; done
    kill -STOP $(family)
}

while read -r word; do
    case $word in
        start)
            "$@" </dev/null >>"$dir/log" 2>&1 &
            pid=$!
            echo "$pid"
            ;;
        hold)
            hold
            echo held
            ;;
        go)
            kill -CONT $(family)
            echo going
            ;;
        kill)
            hold
            everybody=$(family)
            kill -KILL $everybody
            wait "$pid"
            pid=
            echo "$everybody"
            ;;
    esac
done

if [ -n "$pid" ]; then
    kill -CONT $(family)
    kill "-$end_with" "$pid"
    wait "$pid"
fi
for _ in 1 2 3 4 5; do
    rm -rf "$dir" && break
    sleep 1 # somebody is still writing into it
done
