import shutil
import subprocess

import pytest

from ppojob_cli.verl import unread
from ppojob_cli.verl.shell_script import read_script

CALL = "python3 -m verl.trainer.main_ppo"

# What stands before the call, and the arguments of the call: bash itself must agree.
AS_BASH = {
    "A=1 B=x": "a=$A b=${B}c",
    "A=/a; B=b; N=2; C=$A/c-$B/d": "a=$A/x-$B/y b=${A}_$B/$B.z c=$C d=$A/'$B'/e"
    ' f="$A"/$B/g h=$((1+$N-$N)) l=[$A/x,$B] m=[[$A,1],[$B,2]] n=`basename $A`/z'
    """ i="it's $A"/$B/'$B' j="$A"$B/x k=${A}$B/x""",
    "A='x y'": 'a=$A "b=$A"',
    "A=(1 '2 3')": 'x=${A[0]} "${A[@]}" ${A[1]} n=${#A[@]}',
    "A=(p=1); A+=(q=2 # why\n r=3\n)": '"${A[@]}"',
    "unset X": "a=${X:-d} b=${X-e} c=${X:+f} d=${HOME:+g}",
    "X=": "a=${X:-d} b=${X-e}",
    "unset X; Y=${X:=new}": "a=$X b=$Y",
    "unset X; Y=${X:-$((1024 * 2))}; Z=${X:-$(((1 + 2) * 3))}": "a=$Y b=$Z",
    "N=7; M=$((N / 2 + N % 4)); K=$(((N - 1) * -2))": "a=$M b=$K c=$((N > 3 && M <= 6))",
    "N=7; E=": "a=$((1==1)) b=$((N==7&&!0)) c=$((-7%3)) d=$((-N % 4)) e=$((-3+4)) f=$((010+0x1F))"
    " g=$((N>3?N<<2:0)) h=$((2**3**2)) i=$((~N&5|1^2)) j=$((0&&1/0)) k=$((${N}*2!=14))"
    " l=$((E,-2**2))",
    "if ((1==2)); then X=1; elif ((!(7%-4-3))); then X=2; fi": "a=$X",
    "X=; if [[ $X ]] || [ 0 ]; then Y=1; fi": "a=$Y",
    "X=$(echo x > /dev/null); Y=$(echo y >&2); Z=$(echo z 2>&1)": "a=$X b=$Y c=$Z",
    "P=/a/b.tar.gz": "a=${P##*/} b=${P%.gz} c=${P%%.*} d=${P#/} e=${P/a/c} f=${P//[.]/_}"
    " g=${P#*a} h=${P%b*} i=${P/?b*z/-} j=${P%zip}",
    "W=AbC": "a=${W,,} b=${W^^} c=${#W}",
    "B=$(basename /x/y.sh .sh); D=$(dirname -- /x/y.sh)": "a=$B b=$D",
    "D=$(false && echo one || echo two)": "a=$D",
    "D=$(echo one && echo two)": '"a=$D" $D',
    "if [ a = b ]; then X=1; elif [[ abc == a* ]]; then X=2; else X=3; fi": "a=$X",
    "if ! [ -z '' ] || (( 2 > 3 )); then X=1; else X=2; fi": "a=$X",
    "if { [ a = a ] || false; } && [ 3 -ge 3 ]; then X=1; fi": "a=$X",
    "case vllm in sglang | vllm) X=1 ;; *) X=2 ;; esac": "a=$X",
    "case x in a) X=1 ;; *) X=2 ;; esac": "a=$X",
    "[ a = a ] && X=1; [ a = b ] || Y=2": "a=$X b=$Y",
    "(X=1); Y=2": "a=${X:-0} b=$Y",
    "f() { X=in; }; f": "a=$X",
    "f() { X=in; return 0; X=out; }; f": "a=$X",
    "export X=1 Y='2 3'": 'a=$X "b=$Y"',
    'X=\'["console","wandb"]\'': "l=$X \"k='q'\" 'm=$X' n=\\$X",
    "A='x=1 \\\n  y=2'; B=z=3": 'Q="$A $B" "$A  $B ${B}" $A $B',
    "A=1 B=2\nC=(x\n y)\nexport D=3\nE=4 true\nF=5 \\\n true": "$A $B ${C[@]} $D e=${E:-} f=${F:-}",
    "T=[1,2]": "a=\"['$T','x']\" \\\n  b=2",
    'Q="a \\"b\\" $((1+1)) c"': '"$Q"',
}

# Before the call, an argument of it, and the sources that are named instead.
UNREAD = {
    ("", "a=$NOT_SET"): ["$NOT_SET"],
    ("X=$(date)", "a=$X-b"): ["$(date)"],
    ("X=${Y:-$(hostname)}", "a=$X"): ["$(hostname)"],
    ("if [ -d /data ]; then X=1; fi", "a=$X"): ["[ -d /data ]"],
    ("for i in 1 2; do X=$i; done", "a=$X"): ["for i in 1 2"],
    ("[ -f /x ] && E=(b=1)", '"${E[@]}"'): ["[ -f /x ]"],
    ("N=$(nproc)", "a=$((N * 2))"): ["$((N * 2))"],
    ("N=1", "a=$((N++))"): ["$((N++))"],
    ("", "a=$((1/0))"): ["$((1/0))"],
    ("", "a=$1"): ["$1"],
}


@pytest.mark.processes
@pytest.mark.parametrize("before", AS_BASH)
def test_words_are_those_of_bash(before: str) -> None:
    bash = shutil.which("bash")
    assert bash
    python = "python3() { shift 2; printf '%s\\0' \"$@\"; }\n"
    script = f"{before}\n{CALL} {AS_BASH[before]}\n"
    ran = subprocess.run([bash, "-c", python + script], capture_output=True, text=True, check=True)
    assert arguments(script) == ran.stdout.split("\0")[:-1]


@pytest.mark.parametrize("case", UNREAD, ids=" ".join)
def test_what_only_a_run_could_say_is_marked(case: tuple[str, str]) -> None:
    before, argument = case
    found = arguments(f"{before}\n{CALL} {argument} last=1\n")
    assert found[-1] == "last=1"
    assert [source for _, source in unread.marks(list(found))] == UNREAD[case]


def test_lines_are_those_of_the_arguments() -> None:
    (launch,) = read_script(f"\nA=1\n{CALL} a=$A \\\n  b=2\n", "run.sh", {}).launches
    assert [(one.text, one.line) for one in launch.arguments] == [("a=1", 3), ("b=2", 4)]


def test_the_environment_is_what_is_given() -> None:
    script = f"X=${{X:-1}}\n{CALL} a=$X b=$0\n"
    (launch,) = read_script(script, "run.sh", {"X": "9"}).launches
    assert [one.text for one in launch.arguments] == ["a=9", "b=run.sh"]


def test_the_folder_of_the_call_is_a_dot() -> None:
    """A job that is run there finds the same files: `cd` is for `$( )` alone."""
    script = """
        ROOT=$(cd -- "$(dirname "${BASH_SOURCE[0]}")/.." >/dev/null 2>&1 && pwd)
        HERE=`pwd`
        cd conf && A=$PWD; cd /data; B=$(cd sub && pwd -P)
    """
    call = f"{CALL} root=$ROOT here=$HERE/x a=$A b=$B\n"
    (launch,) = read_script(script + call, "examples/run.sh", {}).launches
    found = [one.text for one in launch.arguments]
    assert found == ["root=examples/..", "here=./x", "a=.", "b=sub"]
    (launch,) = read_script(f"{CALL} a=$PWD b=$1\n", "r.sh", {"PWD": "/w", "1": "8"}).launches
    assert [one.text for one in launch.arguments] == ["a=/w", "b=8"]


def test_nothing_behind_an_exit_is_read() -> None:
    assert not read_script(f"exit 1\n{CALL} a=1\n", "run.sh", {}).launches


def arguments(script: str) -> list[str]:
    (launch,) = read_script(script, "bash", {"HOME": "/home/user"}).launches
    return [one.text for one in launch.arguments]
