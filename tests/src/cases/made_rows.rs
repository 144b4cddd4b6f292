//! The rows whose programs are made for the run: where names and unwind information are kept, and code that has no file.

use super::rows::LEVELS;
use super::{ANY, Case, Made, NOTHING_KNOWN, Target};

type Needs = &'static [(&'static str, &'static str)];

const CC: (&str, &str) = ("cc", "gcc");
const BINUTILS: Needs = &[CC, ("objcopy", "binutils")];

/// Functions that only debug information names.
const INLINED: &[&str] = &["main", ANY, "caller_of_inlined", "inlined1", "inlined2"];

const fn made(
    name: &'static str,
    needs: Needs,
    make: &'static str,
    run: &'static str,
    leaf: &'static str,
    chain: &'static [&'static str],
) -> Case {
    Case { name, target: Target::Made(Made { needs, make, run }), leaf, chain, ..NOTHING_KNOWN }
}

/// A program whose inlined calls are described by debug information that was packed this way.
const fn inlined(name: &'static str, needs: Needs, make: &'static str) -> Case {
    made(name, needs, make, "exec $folder/program inlined $seconds", "leaf", INLINED)
}

/// An interpreter or a run-time compiler: its functions call its own.
const fn runtime(case: Case, has_jitdump: bool) -> Case {
    Case { leaf_calls: true, has_jitdump, ..case }
}

/// Calls through the linkage table, of a library made for the run.
const fn linked(name: &'static str, make: &'static str) -> Case {
    let chain = &["main", ANY, "caller_of_stub"];
    made(name, BINUTILS, make, "exec $folder/program stub $seconds", "called", chain)
}

pub(super) const ROWS: &[Case] = &[
    linked(
        "linkage table",
        "cc -O2 -shared -fPIC -DFRAME=64 $programs/swapped.c -o libcalled.so
        cc -O2 -fomit-frame-pointer -pthread -DWITH_LIBRARY $programs/stacks.c -L. -lcalled -Wl,-rpath,$PWD -o program",
    ),
    linked(
        "linkage table, lazy",
        "cc -O2 -shared -fPIC -DFRAME=64 $programs/swapped.c -o libcalled.so
        cc -O2 -fomit-frame-pointer -pthread -DWITH_LIBRARY -Wl,-z,lazy -fcf-protection=none $programs/stacks.c \
            -L. -lcalled -Wl,-rpath,$PWD -o program",
    ),
    inlined("inlined calls", BINUTILS, "cc -O2 -g -pthread $programs/stacks.c -o program"),
    inlined(
        "debug file by build id",
        BINUTILS,
        "cc -O2 -g -pthread -Wl,--build-id=uuid $programs/stacks.c -o program
        objcopy --only-keep-debug program debug
        strip program
        id=$(readelf -n program | sed -n 's/.*Build ID: //p')
        rest=${id#??}
        to=/usr/lib/debug/.build-id/${id%$rest}
        mkdir -p $to
        cp debug $to/$rest.debug
        echo $to/$rest.debug",
    ),
    inlined(
        "debug file by link and CRC",
        BINUTILS,
        "cc -O2 -g -pthread -Wl,--build-id=none $programs/stacks.c -o program
        objcopy --only-keep-debug program program.debug
        strip program
        objcopy --add-gnu-debuglink=program.debug program
        mkdir .debug
        mv program.debug .debug",
    ),
    inlined(
        "the same behind one of another build",
        BINUTILS,
        "cc -O2 -g -pthread -Wl,--build-id=none $programs/stacks.c -o program
        objcopy --only-keep-debug program program.debug
        strip program
        objcopy --add-gnu-debuglink=program.debug program
        mkdir .debug
        mv program.debug .debug
        cc -O0 -g -pthread -Wl,--build-id=none $programs/stacks.c -o program.debug",
    ),
    inlined(
        ".gnu_debugaltlink",
        &[CC, ("dwz", "dwz"), ("readelf", "binutils")],
        "cc -O2 -g -pthread $programs/stacks.c -o program
        cc -O2 -g -pthread $programs/stacks.c -DWITHOUT_CONTEXTS -o other
        dwz -m common.debug program other
        readelf -SW program | grep -q gnu_debugaltlink",
    ),
    made(
        ".gnu_debugdata",
        &[CC, ("objcopy", "binutils"), ("xz", "xz-utils")],
        "cc -O2 -fomit-frame-pointer -pthread $programs/stacks.c -o program
        nm --defined-only --format=posix program | awk '$2 ~ /^[Tt]$/ { print $1 }' > kept
        objcopy --only-keep-debug program debug
        objcopy -S --remove-section .gdb_index --remove-section .comment --keep-symbols=kept debug mini
        strip program
        xz mini
        objcopy --add-section .gnu_debugdata=mini.xz program",
        "exec $folder/program plain $seconds",
        "leaf",
        LEVELS,
    ),
    inlined("sections compressed, zlib", BINUTILS, "cc -O2 -g -gz=zlib -pthread $programs/stacks.c -o program"),
    inlined(
        "sections compressed, .zdebug",
        BINUTILS,
        "cc -O2 -g -pthread $programs/stacks.c -o program
        objcopy --compress-debug-sections=zlib-gnu program",
    ),
    inlined(
        "sections compressed, zstd",
        BINUTILS,
        "cc -O2 -g -pthread $programs/stacks.c -o program
        objcopy --compress-debug-sections=zstd program",
    ),
    inlined(
        ".dwo, DWARF 5",
        BINUTILS,
        "cc -O2 -g -gsplit-dwarf -pthread -c $programs/stacks.c -o stacks.o
        cc -pthread stacks.o -o program",
    ),
    inlined(
        ".dwo, DWARF 4",
        BINUTILS,
        "cc -O2 -gdwarf-4 -gsplit-dwarf -pthread -c $programs/stacks.c -o stacks.o
        cc -pthread stacks.o -o program",
    ),
    inlined(
        ".dwp, DWARF 5",
        &[CC, ("llvm-dwp", "llvm")],
        "cc -O2 -g -gsplit-dwarf -pthread -c $programs/stacks.c -o stacks.o
        cc -pthread stacks.o -o program
        llvm-dwp -e program -o program.dwp
        rm stacks.dwo",
    ),
    inlined(
        ".dwp, DWARF 4",
        &[CC, ("dwp", "binutils")],
        "cc -O2 -gdwarf-4 -gsplit-dwarf -pthread -c $programs/stacks.c -o stacks.o
        cc -pthread stacks.o -o program
        dwp -e program -o program.dwp
        rm stacks.dwo",
    ),
    made(
        "a file that was deleted",
        BINUTILS,
        "cc -O2 -fomit-frame-pointer -pthread $programs/stacks.c -o program",
        "cp $folder/program $folder/stacks; exec $folder/stacks deleted $seconds",
        "leaf",
        LEVELS,
    ),
    made(
        "a file that was replaced",
        BINUTILS,
        "cc -O2 -fomit-frame-pointer -pthread $programs/stacks.c -o program
        cc -O0 -pthread $programs/stacks.c -o other",
        "cp $folder/program $folder/stacks; cp $folder/other $folder/new; exec $folder/stacks replaced $seconds $folder/new",
        "leaf",
        LEVELS,
    ),
    made(
        "another mount namespace",
        &[CC, ("unshare", "util-linux")],
        "cc -O2 -fomit-frame-pointer -pthread $programs/stacks.c -o program
        mkdir root",
        "exec unshare --mount sh -e -c 'mount -t tmpfs none $folder/root; cp $folder/program $folder/root/stacks; \
         exec $folder/root/stacks plain $seconds'",
        "leaf",
        LEVELS,
    ),
    made(
        "perf map",
        BINUTILS,
        "cc -O2 -fno-omit-frame-pointer -fno-optimize-sibling-calls -static $programs/jit.c -o program",
        "exec $folder/program map $seconds",
        "made_short",
        &["main", ANY, "work_for"],
    ),
    Case {
        has_jitdump: true,
        ..made(
            "jitdump",
            BINUTILS,
            "cc -O2 -fno-omit-frame-pointer -fno-optimize-sibling-calls -static $programs/jit.c -o program",
            "exec $folder/program dump $seconds $folder",
            "made_long",
            &["main", ANY, "work_for"],
        )
    },
    runtime(
        made(
            "Node, perf map",
            &[("node", "nodejs")],
            "",
            "exec node --perf-basic-prof --interpreted-frames-native-stack --max-inlined-bytecode-size=0 \
             $programs/chain.js $seconds",
            "leaf",
            &["main", ANY, "level1", "level2"],
        ),
        false,
    ),
    runtime(
        made(
            "Node, jitdump",
            &[("node", "nodejs")],
            "",
            "exec node --perf-prof --interpreted-frames-native-stack --max-inlined-bytecode-size=0 \
             $programs/chain.js $seconds",
            "leaf",
            &["main", ANY, "level1", "level2"],
        ),
        true,
    ),
    runtime(
        made(
            "Python, perf map",
            &[],
            "",
            "exec $python -X perf $programs/chain.py $seconds",
            "py::leaf",
            &["_start", ANY, "py::level1", ANY, "py::level2", ANY],
        ),
        false,
    ),
    runtime(
        made(
            "Java, perf map",
            &[("java", "openjdk-17-jdk-headless"), ("javac", "openjdk-17-jdk-headless")],
            "javac -d . $programs/Chain.java",
            "exec java -XX:+UnlockDiagnosticVMOptions -XX:+DumpPerfMapAtExit -XX:+PreserveFramePointer -Xcomp \
             -XX:-TieredCompilation -XX:CompileCommand=quiet -XX:CompileCommand=dontinline,Chain::* -cp $folder Chain $seconds",
            "Chain.leaf",
            &["start_thread", ANY, "Chain.work", "Chain.level1", "Chain.level2"],
        ),
        false,
    ),
];
