#!/usr/bin/env python3
"""Makes the image for CPUs without a docker engine: each instruction of deploy/docker/Dockerfile is
carried out in a root directory that debootstrap made, and a cluster is started from the last one,
as the image's user on a root that is mounted read-only.

Usage: tests/deploy/image_test.py [--built | --cuda] [--record=FILE] [FOLDER]     (as root, some ten
minutes, two with --built or --cuda; needs debootstrap and a mirror that apt reaches. FOLDER keeps
the roots; by default they go.)

With --built the binary is that of build/release, for who wants to know of the last stage alone.
With --cuda the image for GPUs, as far as a machine shows it that has a CUDA toolkit and not
NVIDIA's packages: the binary is that of build/cuda, which the recipe would compile by the same
preset. All headers of the toolkit that it was compiled from are in packages that the recipe names,
and of the toolkit's libraries only the one that these packages have to bring is there.
"""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

import records

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
DOCKERFILE = ROOT / "deploy" / "docker" / "Dockerfile"
TOOLKIT = pathlib.Path("/usr/local/cuda")
BUILD, CUDA_BUILD = ROOT / "build" / "release", ROOT / "build" / "cuda"
# In cuda-crt (needed by cuda-nvcc), cuda-cccl (by cuda-cudart-dev), libcublas-dev, and
# cuda-cudart-dev itself.
HEADERS_NAMED = (r"crt/.*|nv/.*|cublas\w*\.h|cu(da|Complex)\w*\.hp?p?|(builtin|channel|device|"
                 r"driver|library|sm_\d\d|surface|texture|vector)_\w+\.hp?p?")
MIRROR = "http://deb.debian.org/debian"
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def run(*words, **more):
    print("$", *words, flush=True)
    subprocess.run([str(word) for word in words], check=True, **more)


def size_mib(folder):
    out = subprocess.run(["du", "-sxm", folder], capture_output=True, text=True, check=True).stdout
    return int(out.split()[0])


def instructions():
    """[(word, rest)] with lines that end in a backslash joined."""
    text = re.sub(r"^#.*\n", "", DOCKERFILE.read_text(encoding="utf-8"), flags=re.M)
    lines = text.replace("\\\n", " ").splitlines()
    return [tuple(line.split(maxsplit=1)) for line in lines if line.strip()]


class Image:
    """The root directory of one stage and what is set for its commands."""

    def __init__(self, folder, base):
        self.folder, self.workdir, self.user, self.entry = folder, "/", None, []
        run("cp", "-a", base, folder)

    def copy(self, source_root, sources, target):
        at = self.folder / os.path.normpath(os.path.join(self.workdir, target)).lstrip("/")
        is_folder = target.endswith("/") or len(sources) > 1 or sources == ["."]
        for source in sources:
            path = source_root / source.lstrip("/")
            if path.is_dir():
                shutil.copytree(path, at, symlinks=True, dirs_exist_ok=True)
                continue
            to = at / path.name if is_folder else at
            to.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, to)

    def execute(self, words):
        """In the root directory as the image's user; /dev, /proc and the way to the network are the
        host's, as a docker engine would give them. Who is not root gets a read-only file system, as
        pods do, and /tmp."""
        user = [f"--userspec={self.user}"] if self.user else []
        script = ("mount --bind /dev dev; mount -t proc proc proc; "
                  + ("mount -t tmpfs tmpfs tmp; mount -o remount,bind,ro .; " if self.user else "")
                  + 'exec "$@"')
        # A directory is remounted only where it is a mount.
        run("unshare", "--mount", "sh", "-ec", 'mount --bind . .; cd "$PWD"; ' + script, "image",
            "chroot", *user, ".",
            "env", "-i", f"PATH={PATH}", "HOME=/tmp", "sh", "-c", f'cd {self.workdir}; exec "$@"',
            "enter", *words, cwd=self.folder)


def make_base(folder):
    run("debootstrap", "--variant=minbase", "bookworm", folder, MIRROR, stdout=subprocess.DEVNULL)
    shutil.copy("/etc/resolv.conf", folder / "etc" / "resolv.conf")
    shutil.copytree("/etc/apt/apt.conf.d", folder / "etc" / "apt" / "apt.conf.d",
                    dirs_exist_ok=True)


def headers_of_build():
    """Headers of the toolkit that objects of build/cuda were compiled from."""
    said = subprocess.run(["ninja", "-C", CUDA_BUILD, "-t", "deps"], capture_output=True, text=True,
                          check=True).stdout
    # Nothing that serves needs nccl.h, and where there is none nothing that does is compiled.
    return {os.path.realpath(path) for path in re.findall(r"^ +(/\S+)$", said, re.M)
            if os.path.realpath(path).startswith(os.path.realpath(TOOLKIT))
            and not path.endswith("/nccl.h")}


def check_headers():
    """All of them are in the packages that the recipe names, or in those that these need."""
    others = {path for path in headers_of_build()
              if not re.fullmatch(HEADERS_NAMED, path.partition("/include/")[2])}
    if others:
        raise SystemExit(f"no package named has {sorted(others)}")


class BuiltHere:
    """Stands for the stage that compiles."""

    def __init__(self, folder, build):
        self.folder = folder
        run("cmake", "--install", build, "--prefix", folder / "opt" / "lockstep", "--strip",
            stdout=subprocess.DEVNULL)
        shutil.copytree(ROOT / "deploy" / "demo-model", folder / "opt" / "lockstep" / "demo-model")


def add_library(base):
    """What libcublas-13-0 gives a base: of its libraries the one that is needed, and the loader's
    way to it."""
    folder = base / "usr" / "local" / "cuda" / "lib64"
    folder.mkdir(parents=True)
    shutil.copy2(TOOLKIT / "lib" / "libcublasLt.so.13", folder)
    (base / "etc" / "ld.so.conf.d" / "cuda.conf").write_text("/usr/local/cuda/lib64\n",
                                                             encoding="utf-8")
    run("chroot", base, "ldconfig")


def make_images(work, build):
    """The last stage's image. The context is what git has; `build` stands for the first stage, if
    it is not None."""
    context, base = work / "context", work / "base"
    run("git", "clone", "-q", ROOT, context)
    shutil.rmtree(context / ".git")
    if not base.exists():
        make_base(base)
        if build == CUDA_BUILD:
            add_library(base)
    variables, stages, image = {}, {}, None
    for word, rest in instructions():
        rest = re.sub(r"\$\{(\w+)\}", lambda found: variables[found[1]], rest)
        if word == "ARG":
            name, _, value = rest.partition("=")
            variables.setdefault(name, value)
        elif word == "FROM":
            source, _, name = rest.partition(" AS ")
            if source != "debian:12-slim":
                raise SystemExit(f"{source} is not what debootstrap makes")
            folder = work / f"stage-{len(stages)}"
            stands = build is not None and name == "build"
            image = stages[name] = BuiltHere(folder, build) if stands else Image(folder, base)
        elif isinstance(image, BuiltHere):
            continue
        elif word == "WORKDIR":
            image.workdir = rest
            (image.folder / rest.lstrip("/")).mkdir(parents=True, exist_ok=True)
        elif word == "COPY":
            stage = re.match(r"--from=(\w+) (.*)", rest)
            *sources, target = (stage[2] if stage else rest).split()
            image.copy(stages[stage[1]].folder if stage else context, sources, target)
        elif word == "RUN":
            image.execute(["sh", "-c", rest])
        elif word == "USER":
            image.user = rest
        elif word == "ENTRYPOINT":
            image.entry = json.loads(rest)
        else:
            raise SystemExit(f"{word} is not understood")
    records.measured("base_mib", size_mib(base))
    records.measured("image_mib", size_mib(image.folder))
    return image


# A cluster of the image's own processes answers and holds the proof.
CLUSTER = """
lockstep=$1
mkfifo /tmp/said
$lockstep up --model=/opt/lockstep/demo-model --port=7400 --run_dir=/tmp/run >/tmp/said & up=$!
exec 3</tmp/said
while read -r line <&3 && [ "${line#trainers call}" = "$line" ]; do echo "$line"; done
$lockstep generate --target=127.0.0.1:7400 --prompt='12+34*2=' --seed=1
$lockstep verify --target=127.0.0.1:7400 --mode=single --trials=4
kill -TERM $up; wait $up
[ "$(id -u)" != 0 ]
if command -v c++; then exit 1; fi
for folder in / /opt/lockstep /etc /var /usr; do
  if touch $folder/x 2>/tmp/refused; then echo "$folder can be written"; exit 1; fi
  grep -q "Read-only file system" /tmp/refused
done
echo "image holds"
"""


# Without a driver a worker on a GPU says so and ends.
GPU_WORKER = """
echo 'server { listen: "127.0.0.1:0" cluster_id: "c" plaintext: true } worker_id: "w"
scheduler: "127.0.0.1:1" model: "/opt/lockstep/demo-model" backend: "cuda"' >/tmp/worker.textproto
! $1 worker --config=/tmp/worker.textproto >/tmp/worker.log 2>&1
cat /tmp/worker.log
grep -q "CUDA driver" /tmp/worker.log && echo "the library is there, a driver is not"
"""


def main():
    flags = [word for word in sys.argv[1:] if word.startswith("--")]
    folders = [word for word in sys.argv[1:] if not word.startswith("--")]
    build = CUDA_BUILD if "--cuda" in flags else BUILD if "--built" in flags else None
    if build == CUDA_BUILD:
        check_headers()
    with tempfile.TemporaryDirectory(prefix="lockstep-image-") as folder:
        image = make_images(pathlib.Path(folders[0] if folders else folder), build)
        image.execute(["sh", "-ec", CLUSTER, "cluster", *image.entry])
        if build == CUDA_BUILD:
            image.execute(["sh", "-ec", GPU_WORKER, "worker", *image.entry])
    for flag in flags:
        if flag.startswith(records.FLAG):
            records.write(flag.removeprefix(records.FLAG))


if __name__ == "__main__":
    main()
