//! The processors whose stacks can be unwound. All code for both is built on either, so that stacks recorded on one
//! can be unwound on the other.
//!
//! The processor that the program runs on only shows in `Machine::HOST` and in the assembly of `sys/frames.rs`
//! (`tests/fixtures/stacks` are the recorded stacks).

use object::elf::{EM_AARCH64, EM_X86_64};

use crate::record::UserRegs;

/// `PERF_REG_X86_IP`.
const X86_64_IP: u64 = 8;
/// The general registers of x86-64 in the order of DWARF's numbers: AX, DX, CX, BX, SI, DI, BP, SP, R8 to R15. A frame may
/// be found by any of them.
const X86_64: [u64; 16] = [0, 3, 2, 1, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23];
/// `PERF_REG_ARM64_X29`, `…_LR`, `…_SP` and `…_PC`.
const AARCH64: [u64; 4] = [29, 30, 31, 32];

/// A processor architecture.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Machine {
    /// Also called AMD64 and Intel 64.
    #[default]
    X86_64,
    /// 64-bit Arm.
    Aarch64,
}

impl Machine {
    /// What this program was built for.
    pub const HOST: Machine = if cfg!(target_arch = "aarch64") { Machine::Aarch64 } else { Machine::X86_64 };

    /// The machine that an ELF header names.
    pub(crate) fn of_elf(e_machine: object::elf::Machine) -> Option<Self> {
        match e_machine {
            EM_X86_64 => Some(Machine::X86_64),
            EM_AARCH64 => Some(Machine::Aarch64),
            _ => None,
        }
    }

    /// The registers that unwinding starts from, as `perf_event_attr.sample_regs_user`.
    pub(crate) fn sample_regs(self) -> u64 {
        let mask = |numbers: &[u64]| numbers.iter().fold(0, |mask, number| mask | 1 << number);
        match self {
            Machine::X86_64 => mask(&X86_64) | 1 << X86_64_IP,
            Machine::Aarch64 => mask(&AARCH64),
        }
    }

    /// A thread's registers as it has noted them itself: on x86-64 in DWARF's numbering and the instruction pointer behind them,
    /// on aarch64 instruction pointer, stack pointer, return address and frame pointer.
    pub fn noted_regs(self, noted: &[u64; 17]) -> UserRegs {
        match self {
            Machine::X86_64 => {
                UserRegs::X86_64 { ip: noted[16], general: std::array::from_fn(|number| Some(noted[number])) }
            }
            Machine::Aarch64 => UserRegs::Aarch64 { pc: noted[0], sp: noted[1], lr: noted[2], fp: noted[3] },
        }
    }

    /// A task's registers, each given by its number in the kernel's interface.
    pub(crate) fn user_regs(self, is_64_bit: bool, get: impl Fn(u64) -> Option<u64>) -> Option<UserRegs> {
        let [fp, lr, sp_aarch64, pc] = AARCH64;
        Some(match (self, is_64_bit) {
            (Machine::X86_64, true) => UserRegs::X86_64 { ip: get(X86_64_IP)?, general: X86_64.map(get) },
            (Machine::X86_64, false) => UserRegs::Narrow { ip: get(X86_64_IP)? },
            (Machine::Aarch64, true) => {
                UserRegs::Aarch64 { pc: get(pc)?, sp: get(sp_aarch64)?, lr: get(lr)?, fp: get(fp)? }
            }
            (Machine::Aarch64, false) => UserRegs::Narrow { ip: get(pc)? },
        })
    }
}
