//! Classification of a process: whether it has changed, and which section it matches.

use super::look::{Processes, Recheck, ScanContext};
use super::naming::Instance;
use super::proc_folder::{ListedProcess, ProcReadError};
use super::process::Subject;
use super::stat::Stat;
use super::table::{TargetId, TargetTable};
use crate::sys::family;

impl Processes {
    /// Rechecks a known process, and classifies it again if it has changed.
    pub(super) fn look_again(&mut self, listed: ListedProcess, terms: &mut ScanContext<'_>) -> Recheck {
        let stat = match self.folder.stat(listed.pid) {
            Ok(stat) => stat,
            Err(ProcReadError::Gone) => return Recheck::Ended,
            Err(ProcReadError::Failed) => {
                self.all
                    .get_mut(&listed.pid)
                    .into_iter()
                    .for_each(|process| process.unclassified |= terms.anew);
                return Recheck::Same;
            }
        };
        let Some(process) = self.all.get_mut(&listed.pid) else { return Recheck::Same };
        if process.stat.start != stat.start {
            return Recheck::Replaced;
        }
        process.inode = listed.inode;
        process.new_ticks += stat.cpu_ticks.saturating_sub(process.stat.cpu_ticks);
        let was = std::mem::replace(&mut process.stat, stat);
        let must_classify = std::mem::take(&mut process.unclassified) || terms.anew;
        if process.stat.has_ended {
            // What its children have inherited, they keep.
            self.move_to(listed.pid, None, terms.table);
            return if was.has_ended { Recheck::Same } else { Recheck::Changed { heritage: false } };
        }
        if !self.has_changed(listed.pid, &was, terms.table) && !must_classify {
            return Recheck::Same;
        }
        Recheck::Changed { heritage: self.classify(listed.pid, terms) }
    }

    /// Whether a process may match another section than with this earlier `stat`. What was read about it is read again.
    fn has_changed(&mut self, pid: u32, was: &Stat, table: &mut TargetTable) -> bool {
        let Some(process) = self.all.get_mut(&pid) else { return false };
        let now = &process.stat;
        let runs_another = now.image.has_memory() && (now.image != was.image || !now.image.is_known());
        let is_called_another = now.comm != was.comm || now.is_kernel != was.is_kernel;
        if runs_another {
            process.facts.forget_program();
        }
        let is_another_s = process.facts.read_user_again(pid, &mut self.folder);
        let path = process.facts.read_place_again(pid, &mut self.folder, &self.places);
        let has_moved = path.is_some();
        if let Some(path) = path {
            self.move_to(pid, path.as_deref(), table);
        }
        runs_another || is_called_another || is_another_s || has_moved
    }

    /// Takes a process out of its control group, and into another.
    fn move_to(&mut self, pid: u32, path: Option<&str>, table: &mut TargetTable) {
        let Some(process) = self.all.get_mut(&pid) else { return };
        if let Some(counted) = &mut process.counted {
            // The group may be forgotten, and its number reused.
            table.leave(pid, *counted);
            counted.place = None;
            table.enter(pid, *counted);
        }
        process.facts.move_to(path, &mut self.places);
    }

    /// Finds the section that a process matches itself. Returns whether that is another target than before.
    pub(super) fn classify(&mut self, pid: u32, terms: &mut ScanContext<'_>) -> bool {
        let own = self.fitting(pid, terms);
        let Some(process) = self.all.get_mut(&pid) else { return false };
        process.facts.forget_command();
        std::mem::replace(&mut process.own, own) != own
    }

    fn fitting(&mut self, pid: u32, terms: &mut ScanContext<'_>) -> Option<TargetId> {
        let (is_ours, groups_matter) = (pid == self.own || family::is_reader(pid), self.groups_matter);
        let mut subject = self.subject(pid)?;
        if groups_matter {
            subject.place_id(); // counts in its group even without a target
        }
        if is_ours {
            return None;
        }
        let at = terms.finder.first_fit(terms.sections, &mut subject)?;
        let section = &mut terms.sections[at];
        if section.settings.pid.is_some() {
            section.start = Some(subject.stat.start);
        }
        self.target_in(pid, at, terms)
    }

    /// The target of a section that a process belongs to.
    pub(super) fn target_in(&mut self, pid: u32, at: usize, terms: &mut ScanContext<'_>) -> Option<TargetId> {
        let section = terms.sections.get(at)?;
        let Some(each) = section.settings.each else { return Some(section.own) };
        let mut users = std::mem::take(&mut self.users);
        let instance = self.subject(pid).and_then(|mut subject| Instance::of(each, &mut subject, &mut users));
        self.users = users;
        let Some(instance) = instance else { return Some(section.own) };
        Some(terms.table.of_instance(section.id, section.own, &section.settings, instance))
    }

    /// The process, ready to be classified; `None` if it can belong to no target.
    pub(super) fn subject(&mut self, pid: u32) -> Option<Subject<'_>> {
        let process = self.all.get_mut(&pid).filter(|process| process.can_belong())?;
        Some(Subject {
            pid,
            stat: &process.stat,
            facts: &mut process.facts,
            folder: &mut self.folder,
            places: &mut self.places,
            containers: &self.containers,
            old_groups: &mut self.old_groups,
        })
    }

    /// Reports to the table how much CPU time the processes of a target have used.
    pub(super) fn charge(&mut self, id: TargetId, table: &mut TargetTable) {
        let pids: Vec<u32> =
            table.get(id).map_or_else(Vec::new, |entry| entry.found.pids.iter().copied().collect());
        for pid in pids {
            let (Ok(stat), Some(process)) = (self.folder.stat(pid), self.all.get_mut(&pid)) else { continue };
            if stat.start == process.stat.start {
                let new_ticks = stat.cpu_ticks.saturating_sub(process.stat.cpu_ticks);
                process.stat.cpu_ticks = process.stat.cpu_ticks.max(stat.cpu_ticks);
                table.charge(id, new_ticks + std::mem::take(&mut process.new_ticks));
            }
        }
    }
}
