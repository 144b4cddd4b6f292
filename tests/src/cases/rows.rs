//! The rows: what compilers, linkers and run-time systems do to stacks.

use super::{ANY, Case, NOTHING_KNOWN, Target};

pub(super) const LEVELS: &[&str] = &["main", ANY, "level1", "level2", "level3"];

const fn program(
    name: &'static str,
    program: &'static str,
    mode: &'static str,
    leaf: &'static str,
    chain: &'static [&'static str],
) -> Case {
    Case { name, target: Target::Program(program, mode, &[]), leaf, chain, ..NOTHING_KNOWN }
}

const fn cut(case: Case, reason: &'static str) -> Case {
    Case { cut: Some(reason), ..case }
}

const fn command(name: &'static str, command: &'static str, words: &'static [&'static str]) -> Case {
    let target = Target::Command(command, words);
    Case { name, target, ..NOTHING_KNOWN }
}

/// The rows whose programs are kept between runs.
pub(super) const ROWS: &[Case] = &[
    program(".eh_frame and its index", "stacks", "plain", "leaf", LEVELS),
    program(".eh_frame without its index", "stacks_no_index", "plain", "leaf", LEVELS),
    program(".debug_frame alone", "stacks_debug_frame", "plain", "leaf", LEVELS),
    program(".debug_frame, compressed", "stacks_debug_frame_z", "plain", "leaf", LEVELS),
    program("not optimized", "stacks_o0", "plain", "leaf", LEVELS),
    program("frame pointers", "stacks_fp", "plain", "leaf", LEVELS),
    program("frame pointers, no tables", "stacks_fp_only", "plain", "leaf", LEVELS),
    Case { nameless_frames: Some(8), ..program("stripped", "stacks_stripped", "plain", "", &[]) },
    program("static", "stacks_static", "plain", "leaf", LEVELS),
    program("static-PIE", "stacks_static_pie", "plain", "leaf", LEVELS),
    program("musl, static", "stacks_musl", "plain", "leaf", LEVELS),
    program("musl, dynamic", "stacks_musl_dynamic", "plain", "leaf", LEVELS),
    program(
        "prologues and epilogues",
        "stacks",
        "pushes",
        "pushes",
        &["main", ANY, "caller_of_pushes", "pushes_deeper"],
    ),
    program(
        "the same, not optimized",
        "stacks_o0",
        "pushes",
        "pushes",
        &["main", ANY, "caller_of_pushes", "pushes_deeper"],
    ),
    program(
        "the same, frame pointers",
        "stacks_fp",
        "pushes",
        "pushes",
        &["main", ANY, "caller_of_pushes", "pushes_deeper"],
    ),
    program(
        "signal",
        "stacks",
        "signal",
        "leaf",
        &["main", ANY, "caller_of_interrupted", "interrupted", ANY, "on_signal"],
    ),
    program(
        "signal, frame pointers",
        "stacks_fp",
        "signal",
        "leaf",
        &["main", ANY, "caller_of_interrupted", ANY, "on_signal"],
    ),
    program(
        "signal, static",
        "stacks_static",
        "signal",
        "leaf",
        &["main", ANY, "caller_of_interrupted", "interrupted", ANY, "on_signal"],
    ),
    program(
        "signal, musl",
        "stacks_musl",
        "signal",
        "leaf",
        &["main", ANY, "caller_of_interrupted", "interrupted", ANY, "on_signal"],
    ),
    cut(
        program(
            "signal on a stack of its own",
            "stacks",
            "altstack",
            "leaf",
            &["interrupted", ANY, "on_signal"],
        ),
        "other_stack",
    ),
    program(
        "vDSO",
        "stacks",
        "vdso",
        "clock_gettime|__vdso_clock_gettime",
        &["main", ANY, "caller_of_vdso", ANY],
    ),
    Case {
        target: Target::Program("stacks", "library", &["libswapped_a.so", "libswapped_b.so"]),
        ..program(
            "libraries loaded in turn",
            "stacks",
            "",
            "library_leaf",
            &["main", ANY, "caller_of_library", "enter"],
        )
    },
    program("thread", "stacks", "thread", "leaf", &["thread_body", ANY, "level1", "level2", "level3"]),
    program(
        "thread, musl",
        "stacks_musl",
        "thread",
        "leaf",
        &["thread_body", ANY, "level1", "level2", "level3"],
    ),
    program("forked child", "stacks", "fork", "leaf", LEVELS),
    program(
        "called back by the C library",
        "stacks",
        "compared",
        "leaf",
        &["main", ANY, "caller_of_compared", ANY, "compared"],
    ),
    // Its functions have no tables.
    cut(program("called back by musl", "stacks_musl", "compared", "leaf", &["compared"]), "no_tables"),
    program("fiber", "stacks", "fiber", "leaf", &["fiber_body", "level1", "level2", "level3"]),
    program("tail calls", "stacks", "tail", "leaf", &["main", ANY, "caller_of_tail"]),
    program(
        "realigned frames",
        "stacks",
        "realigned",
        "leaf",
        &["main", ANY, "caller_of_realigned", "realigned"],
    ),
    program(
        "assembly that calls back",
        "stacks",
        "assembly",
        "leaf",
        &["main", ANY, "caller_of_assembly", "assembly_caller"],
    ),
    program(
        "assembly with a frame",
        "stacks",
        "framed",
        "assembly_framed",
        &["main", ANY, "caller_of_framed"],
    ),
    program("assembly without a frame", "stacks", "bare", "assembly_bare", &["main", ANY, "caller_of_bare"]),
    program(
        "160 KiB of frames",
        "stacks",
        "wide",
        "leaf",
        &["main", ANY, "wide_frames", "wide", "wide", "wide", ANY],
    ),
    program(
        "a page never written to",
        "stacks",
        "hollow",
        "assembly_framed",
        &["main", ANY, "caller_of_hollow", "hollow"],
    ),
    program(
        "a page never written to, frame pointers",
        "stacks_fp",
        "hollow",
        "assembly_framed",
        &["main", ANY, "caller_of_hollow", "hollow"],
    ),
    cut(
        program("5000 frames", "stacks", "recursion", "leaf", &["recursion", "recursion", "recursion"]),
        "copy_too_short",
    ),
    program("split stack", "stacks_split", "plain", "leaf", LEVELS),
    program("C++, in a handler", "unwinding", "catch", "leaf", &["main", "catcher"]),
    program(
        "C++, in a destructor",
        "unwinding",
        "destructor",
        "leaf",
        &["main", "destroyer", "guarded", "~Guard"],
    ),
    program(
        "C++, in a coroutine",
        "unwinding",
        "coroutine",
        "leaf",
        &["main", "resumer", ANY, "coroutine_body"],
    ),
    program("Rust", "chain_rust", "main", "leaf", &["main", ANY, "work", "level1", "level2"]),
    program("Rust, in a thread", "chain_rust", "thread", "leaf", &[ANY, "work", "level1", "level2"]),
    program("Go", "chain_go", "main", "main.leaf", &["main.main", "main.level1", "main.level2"]),
    program(
        "Go, stripped",
        "chain_go_stripped",
        "main",
        "main.leaf",
        &["main.main", "main.level1", "main.level2"],
    ),
    command(
        "Node's native parts",
        "node",
        &[
            "-e",
            "const c = require('crypto'); const end = Date.now() + 2000; while (Date.now() < end) c.pbkdf2Sync('a', 'b', 2000, 64, 'sha512');",
        ],
    ),
    command(
        "Python",
        "python3",
        &[
            "-c",
            "import time, hashlib, json\nend = time.time() + 2\nwhile time.time() < end: json.dumps(list(range(3000))); hashlib.sha256(b'a' * 100000).digest()",
        ],
    ),
    // Stripped: where it begins is told by its C library.
    Case {
        chain: &["__libc_start_main|__libc_start_main_impl", ANY],
        ..command(
            "xz",
            "sh",
            &["-c", "head -c 3000000 \"$(command -v node || command -v perl)\" | xz -6e -c >/dev/null"],
        )
    },
];
