#!/usr/bin/env bash
# Runs one rank per host, where hosts are network namespaces whose links end in a bridge in a namespace of its own.
#
#   ci/netns.sh [OPTIONS] -- COMMAND...
#
#   --hosts N        hosts, 1 to 200 (default 2)
#   --rate RATE      limits both directions of every link, in tc's words, such as 1gbit (default: as fast as it goes)
#   --burst BYTES    bytes that may pass at once above the rate (default 256kb)
#   --family FAMILY  4, 6 or both: the addresses that hosts have (default both; the root's is then IPv4)
#   --port PORT      where rank 0 meets the others (default 4000)
#   --timeout S      seconds after which COMMAND is stopped (default 300)
#   --probe          only says whether this machine can do it: exit status 0, or 1 and the reason
#
# COMMAND runs once in every host, with RONDEL_ROOT, RONDEL_RANK and RONDEL_NRANKS set. Rank 0's output comes as it is,
# the others' with the rank before each line. The exit status is the first of rank 0's, rank 1's, ... that is not 0.
#
# Hosts are 10.77.0.(rank + 1) and fd77::(rank + 1) on eth0. Each also has what must not be used: docker0, up, with the
# same addresses on every host, so that whoever tries it reaches nobody or itself; and eth9, which is down.
set -euo pipefail

hosts=2 rate="" burst=256kb family=both port=4000 limit=300
name=rondel-$$

refuse() {
    echo "netns.sh: $1; see the head of the file" >&2
    exit 2
}

number() { # option, value, smallest, largest
    [[ $2 =~ ^[0-9]{1,6}$ ]] && (($2 >= $3 && $2 <= $4)) || refuse "$1 is '$2', expected a number from $3 to $4"
}

probe() {
    local why="" host=$name-probe
    if ! command -v ip >/dev/null || ! command -v tc >/dev/null; then
        why="ip and tc are not installed (package iproute2)"
    elif [[ $(id -u) -ne 0 ]]; then
        why="network namespaces need root"
    elif ! why=$(ip netns add "$host" 2>&1); then
        why="network namespaces cannot be made here: $why"
    else
        why=$({ ip -n "$host" link add name veth0 type veth peer name veth1 &&
            ip -n "$host" link add name bridge0 type bridge; } 2>&1) || why="no veth or bridge here: $why"
        ip netns delete "$host"
    fi
    [[ -z $why ]] || { echo "$why"; return 1; }
}

while [[ $# -gt 0 ]]; do
    case $1 in
        --hosts) number "$1" "${2-}" 1 200; hosts=$2; shift 2 ;;
        --rate) rate=${2-}; shift 2 ;;
        --burst) burst=${2-}; shift 2 ;;
        --family) family=${2-}; shift 2 ;;
        --port) number "$1" "${2-}" 1 65535; port=$2; shift 2 ;;
        --timeout) number "$1" "${2-}" 1 100000; limit=$2; shift 2 ;;
        --probe) probe; exit ;;
        --) shift; break ;;
        *) refuse "'$1' is no option" ;;
    esac
done
[[ $# -gt 0 ]] || refuse "no command was given"
[[ $family =~ ^(4|6|both)$ ]] || refuse "--family is '$family', expected 4, 6 or both"
probe || exit 1

namespaces=() ranks=()

clean_up() {
    local namespace pid
    for pid in "${ranks[@]}"; do
        kill "$pid" 2>/dev/null || true
    done
    for namespace in "${namespaces[@]}"; do
        # Whatever a command left behind in a namespace of ours.
        ip netns pids "$namespace" 2>/dev/null | xargs -r kill -KILL 2>/dev/null || true
        ip netns delete "$namespace" 2>/dev/null || true
    done
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

add_namespace() {
    ip netns add "$1"
    namespaces+=("$1")
    ip -n "$1" link set dev lo up
}

limit_link() { # namespace, interface
    [[ -z $rate ]] || tc -n "$1" qdisc add dev "$2" root tbf rate "$rate" burst "$burst" latency 50ms
}

add_address() { # namespace, interface, the last part
    [[ $family = 6 ]] || ip -n "$1" address add "10.77.0.$3/24" dev "$2"
    [[ $family = 4 ]] || ip -n "$1" address add "fd77::$(printf %x "$3")/64" dev "$2" nodad
}

add_decoys() { # namespace, rank
    # A container on docker0, so that its link is up.
    ip -n "$1" link add name docker0 type bridge
    ip -n "$1" link add name veth0 type veth peer name "container$2" netns "$switch"
    ip -n "$1" link set dev veth0 master docker0
    ip -n "$1" link set dev veth0 up
    ip -n "$switch" link set dev "container$2" up
    ip -n "$1" link add name eth9 type veth peer name "unplugged$2" netns "$switch"
    [[ $family = 6 ]] || ip -n "$1" address add 172.17.0.1/16 dev docker0
    [[ $family = 4 ]] || ip -n "$1" address add fd17::1/64 dev docker0 nodad
    [[ $family = 6 ]] || ip -n "$1" address add 10.99.0.1/24 dev eth9
    ip -n "$1" link set dev docker0 up
}

switch=$name-switch
add_namespace "$switch"
ip -n "$switch" link add name bridge type bridge
ip -n "$switch" link set dev bridge up
for ((rank = 0; rank < hosts; rank++)); do
    host=$name-$rank
    add_namespace "$host"
    ip -n "$switch" link add name "port$rank" type veth peer name eth0 netns "$host"
    ip -n "$switch" link set dev "port$rank" master bridge
    ip -n "$switch" link set dev "port$rank" up
    ip -n "$host" link set dev eth0 up
    add_address "$host" eth0 $((rank + 1))
    add_decoys "$host" "$rank"
    limit_link "$host" eth0
    limit_link "$switch" "port$rank"
done

root=10.77.0.1:$port
[[ $family != 6 ]] || root="[fd77::1]:$port"

for ((rank = 0; rank < hosts; rank++)); do
    prefix=""
    [[ $rank -eq 0 ]] || prefix="[rank $rank] "
    RONDEL_ROOT=$root RONDEL_RANK=$rank RONDEL_NRANKS=$hosts \
        timeout --kill-after=5 "$limit" ip netns exec "$name-$rank" "$@" > >(sed -u "s/^/$prefix/") 2>&1 &
    ranks+=($!)
done

status=0
for ((rank = 0; rank < hosts; rank++)); do
    code=0
    wait "${ranks[rank]}" || code=$?
    if [[ $code -ne 0 ]]; then
        why="ended with status $code"
        [[ $code -ne 124 ]] || why="was stopped after $limit s"
        echo "netns.sh: rank $rank $why" >&2
        [[ $status -ne 0 ]] || status=$code
    fi
done
ranks=()
exit "$status"
