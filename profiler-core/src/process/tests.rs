use super::*;
use crate::record::FileId;
use proptest::prelude::*;

fn mapped(pid: u32, start: u64, len: u64) -> Mapped {
    Mapped { pid, start, len, file_offset: 0, file: FileId::default(), path: "/lib/a.so".into() }
}

fn object(id: u32) -> impl FnOnce(&Mapped) -> LoadedObject {
    move |_| LoadedObject { id: ObjectId(id), image: None }
}

#[test]
fn a_mapping_replaces_what_it_covers_and_leaves_the_rest() {
    let mut table = ProcessTable::default();
    table.adopt(1, "a");
    table.mapped(&mapped(1, 0x1000, 0x3000), object(7));
    table.mapped(&mapped(1, 0x2000, 0x1000), object(8));
    let space = &table.get(1).unwrap().space;
    let at = |address| space.locate(address);
    assert_eq!(at(0x1fff), Frame { object: ObjectId(7), address: 0xfff });
    assert_eq!(at(0x2000), Frame { object: ObjectId(8), address: 0 });
    assert_eq!(at(0x3000), Frame { object: ObjectId(7), address: 0x2000 });
    assert_eq!(at(0x4000).object, ObjectId::UNKNOWN);
    assert_eq!(at(0xfff).object, ObjectId::UNKNOWN);
}

#[test]
fn a_child_has_its_parents_code_until_it_executes_another_program() {
    let mut table = ProcessTable::default();
    table.adopt(1, "parent");
    table.mapped(&mapped(1, 0x1000, 0x1000), object(7));
    table.forked(Task { pid: 2, parent_pid: 1, tid: 2, time_ns: 0 });
    table.mapped(&mapped(1, 0x8000, 0x1000), object(9));
    let child = |table: &ProcessTable| table.get(2).unwrap().space.clone();
    assert!(child(&table).is_in_file(0x1000) && !child(&table).is_in_file(0x8000));
    table.renamed(2, 2, "other", true);
    assert!(!child(&table).is_in_file(0x1000));
    let index = table.get(2).unwrap().index;
    assert_eq!(table.infos()[index.0 as usize], ProcessInfo { pid: 2, comm: "other".into() });
}

#[test]
fn non_targets_are_not_followed_even_under_a_known_number() {
    let mut table = ProcessTable::default();
    table.adopt(1, "a");
    table.forked(Task { pid: 5, parent_pid: 4, tid: 5, time_ns: 0 });
    table.mapped(&mapped(5, 0x1000, 0x1000), object(7));
    assert!(!table.contains(5));
    table.forked(Task { pid: 1, parent_pid: 4, tid: 1, time_ns: 0 });
    assert!(!table.contains(1));
}

/// A look may find a process while the record of its fork still waits in a ring.
#[test]
fn a_record_from_before_a_process_was_found_is_about_that_process() {
    let mut table = ProcessTable::default();
    table.adopt(1, "shell");
    for (pid, parent_pid, parent) in [(5, 4, None), (2, 1, Some(1))] {
        table.adopt_at(pid, "found", 1_000);
        table.mapped(&mapped(pid, 0x1000, 0x1000), object(7));
        assert!(!table.forked(Task { pid, parent_pid, tid: pid, time_ns: 999 }));
        let found = table.get(pid).unwrap();
        assert!(found.space.is_in_file(0x1000) && found.parent == parent);
    }
    // So it is under the next program that it runs; whoever is born later is another.
    table.renamed(2, 2, "ls", true);
    assert!(!table.forked(Task { pid: 2, parent_pid: 4, tid: 2, time_ns: 999 }) && table.contains(2));
    assert!(table.forked(Task { pid: 2, parent_pid: 1, tid: 2, time_ns: 1_001 }));
    table.forked(Task { pid: 5, parent_pid: 4, tid: 5, time_ns: 1_001 });
    assert!(!table.contains(5));
}

#[test]
fn a_mapping_told_again_changes_nothing() {
    let mut table = ProcessTable::default();
    table.adopt(1, "a");
    table.mapped(&mapped(1, 0x1000, 0x1000), object(7));
    let generation = table.get(1).unwrap().generation;
    table.mapped(&mapped(1, 0x1000, 0x1000), object(7));
    table.mapped(&mapped(1, 0x1000, 0), object(8));
    assert_eq!(table.get(1).unwrap().generation, generation);
    table.mapped(&mapped(1, 0x1000, 0x1000), object(8));
    assert_ne!(table.get(1).unwrap().generation, generation);
}

#[test]
fn a_number_given_to_another_child_of_the_same_parent_is_another_process() {
    let mut table = ProcessTable::default();
    let child = Task { pid: 2, parent_pid: 1, tid: 2, time_ns: 0 };
    table.adopt(1, "shell");
    table.forked(child);
    let first = table.get(2).unwrap().generation;
    table.forked(child); // told by a second event
    assert_eq!(table.get(2).unwrap().generation, first);
    table.renamed(2, 2, "ls", true);
    table.mapped(&mapped(2, 0x1000, 0x1000), object(7));
    table.forked(child);
    assert!(!table.get(2).unwrap().space.is_in_file(0x1000));
}

#[test]
fn forks_share_an_image_that_takes_the_place_of_another() {
    #[expect(clippy::disallowed_methods, reason = "a test may read its own executable")]
    let own = std::fs::read(std::env::current_exe().unwrap()).unwrap();
    let image = Arc::new(ElfImage::parse_bytes(&own).unwrap());
    let mut table = ProcessTable::default();
    table.adopt(1, "a");
    let load = |_: &Mapped| LoadedObject { id: ObjectId(7), image: Some(Arc::clone(&image)) };
    table.mapped(&mapped(1, 0x1000_0000, own.len() as u64), load);
    table.mapped(&mapped(1, 0x9000_0000, 0x1000), object(8));
    table.forked(Task { pid: 2, parent_pid: 1, tid: 2, time_ns: 0 });
    let address = 0x1000_0000 + image.entry;
    let before = table.get(2).unwrap().space.locate(address);
    assert!(table.get(1).unwrap().space.has_tables(0x1000_0000));
    table.replace_image(ObjectId(7), &Arc::new(image.without_tables()));
    let [parent, child] = [1, 2].map(|pid| table.get(pid).unwrap());
    assert!(Arc::ptr_eq(&parent.space, &child.space));
    assert!(!parent.space.has_tables(0x1000_0000));
    assert_eq!(parent.space.locate(address), before);
    table.replace_image(ObjectId(7), &image);
    assert!(table.get(1).unwrap().space.has_tables(0x1000_0000));
    let mut objects: Vec<u32> = table.mapped_objects().map(|id| id.0).collect();
    objects.sort_unstable();
    assert_eq!(objects, [7, 7, 8, 8]);
}

#[test]
fn code_in_the_data_of_an_object_is_its_process_own() {
    use crate::elf::Segment;
    let segment =
        |start, executable| Segment { file_offset: start, file_len: 0x1000, svma: start, executable };
    let segments = vec![segment(0x1000, true), segment(0x2000, false)];
    let image = Arc::new(ElfImage { segments, ..ElfImage::default() });
    let mut table = ProcessTable::default();
    table.adopt(1, "a");
    for offset in [0x1000, 0x2000] {
        let load = |_: &Mapped| LoadedObject { id: ObjectId(7), image: Some(Arc::clone(&image)) };
        table.mapped(&Mapped { file_offset: offset, ..mapped(1, 0x7000_0000 + offset, 0x1000) }, load);
    }
    let process = table.get(1).unwrap();
    assert_eq!(process.locate(0x7000_1800), Frame { object: ObjectId(7), address: 0x1800 });
    let made = Frame { object: ObjectId::generated_by(process.index), address: 0x7000_2800 };
    assert_eq!(process.locate(0x7000_2800), made);
    let has_file = |start, end| process.space.has_file_in(start, end);
    assert!(has_file(0x7000_0000, 0x7000_1001) && !has_file(0x7000_0000, 0x7000_1000));
    assert!(!has_file(0x7000_2000, 0x7000_3000));
}

#[test]
fn there_is_room_for_so_many_mappings_and_again_once_they_are_forgotten() {
    let mut table = ProcessTable::default();
    table.adopt(1, "a");
    let map = |table: &mut ProcessTable, page: usize| {
        table.mapped(&mapped(1, (page as u64 + 1) << 12, 0x1000), object(7))
    };
    assert!((0..MAX_MAPPINGS).all(|page| map(&mut table, page)));
    assert!(!map(&mut table, MAX_MAPPINGS) && map(&mut table, 5), "what is known takes no room");
    table.forget_mappings(1);
    assert!(!table.get(1).unwrap().space.is_in_file(0x1000));
    assert!(map(&mut table, MAX_MAPPINGS));
}

#[test]
fn children_that_no_sample_hits_take_no_memory() {
    let mut table = ProcessTable::default();
    table.adopt(1, "shell");
    for pid in 2..50_000 {
        table.forked(Task { pid, parent_pid: 1, tid: pid, time_ns: 0 });
        table.renamed(pid, pid, "ls", true);
        table.forget(pid);
    }
    assert!(table.infos().len() <= 2);
    assert_eq!(table.infos()[table.get(1).unwrap().index.0 as usize].comm, "shell");
}

#[test]
fn very_many_sampled_processes_share_entries_by_name() {
    let mut table = ProcessTable::default();
    table.adopt(1, "shell");
    for pid in 2..30_000 {
        table.forked(Task { pid, parent_pid: 1, tid: pid, time_ns: 0 });
        table.renamed(pid, pid, ["ls", "cat"][pid as usize % 2], true);
        let process = table.get(pid).unwrap();
        process.note_sample();
        assert_eq!(table.infos()[process.index.0 as usize].comm, ["ls", "cat"][pid as usize % 2]);
        table.forget(pid);
    }
    assert!(table.infos().len() <= MAX_PROCESSES + 3);
    for pid in 2..5_000 {
        table.adopt(pid, &pid.to_string());
        table.get(pid).unwrap().note_sample();
    }
    assert!(table.infos().len() <= MAX_PROCESSES + MAX_SHARED_NAMES + 1);
    let last = table.get(4_999).unwrap().index;
    assert_eq!(table.infos()[last.0 as usize].comm, OTHER_NAMES);
    table.renamed(4_999, 4_999, "cat", false);
    assert_eq!(table.infos()[last.0 as usize].comm, OTHER_NAMES);
    let renamed = table.get(4_999).unwrap().index;
    assert_eq!(table.infos()[renamed.0 as usize].comm, "cat");
}

#[derive(Clone, Debug)]
enum Event {
    Adopt(u32),
    Fork(Task),
    Rename { pid: u32, tid: u32, exec: bool },
    Map { pid: u32, start: u64, len: u64, object: u32 },
    Sample(u32),
    Forget(u32),
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let pid = || 1u32..8;
    let task =
        (pid(), pid(), pid()).prop_map(|(pid, parent_pid, tid)| Task { pid, parent_pid, tid, time_ns: 0 });
    let rename = (pid(), pid(), any::<bool>());
    let map = (pid(), 0u64..40, 0u64..12, 0u32..4);
    let event = prop_oneof![
        pid().prop_map(Event::Adopt),
        task.prop_map(Event::Fork),
        rename.prop_map(|(pid, tid, exec)| Event::Rename { pid, tid, exec }),
        map.prop_map(|(pid, start, len, object)| Event::Map { pid, start, len, object }),
        pid().prop_map(Event::Sample),
        pid().prop_map(Event::Forget),
    ];
    prop::collection::vec(event, 0..200)
}

proptest! {
    #[test]
    fn any_history_leaves_every_process_an_entry_of_its_own(events in events()) {
        let mut table = ProcessTable::default();
        let mut sampled: FxHashMap<ProcessIndex, u32> = FxHashMap::default();
        for event in events {
            match event {
                Event::Adopt(pid) => table.adopt(pid, "a"),
                Event::Fork(task) => drop(table.forked(task)),
                Event::Rename { pid, tid, exec } => table.renamed(pid, tid, "b", exec),
                Event::Map { pid, start, len, object: id } => {
                    table.mapped(&mapped(pid, start << 12, len << 12), object(id));
                }
                Event::Sample(pid) => {
                    if let Some(process) = table.get(pid) {
                        process.note_sample();
                        sampled.insert(process.index, pid);
                    }
                }
                Event::Forget(pid) => table.forget(pid),
            }
            let mut indices: Vec<ProcessIndex> = table.live().map(|(_, process)| process.index).collect();
            indices.sort_unstable();
            prop_assert!(indices.windows(2).all(|pair| pair[0] != pair[1]));
            for (pid, process) in table.live() {
                prop_assert_eq!(table.infos()[process.index.0 as usize].pid, pid);
            }
            for (index, &pid) in &sampled {
                prop_assert_eq!(table.infos()[index.0 as usize].pid, pid);
            }
            prop_assert!(table.infos().len() <= sampled.len() + 8);
        }
    }

    #[test]
    fn an_address_belongs_to_what_was_mapped_last(
        maps in prop::collection::vec((0u64..60, 0u64..20, 1u32..6), 0..40),
    ) {
        const BASE: u64 = 0x1000;
        let mut table = ProcessTable::default();
        table.adopt(1, "a");
        let mut pages: [Option<(u32, u64)>; 100] = [None; 100];
        for (first, len, id) in maps {
            table.mapped(&mapped(1, BASE + (first << 12), len << 12), object(id));
            let start = BASE + (first << 12);
            pages[first as usize..(first + len) as usize].fill(Some((id, start)));
            let space = &table.get(1).unwrap().space;
            for (page, expected) in pages.iter().enumerate() {
                let (id, start) = expected.unwrap_or((ObjectId::UNKNOWN.0, 0));
                let start = if id == ObjectId::UNKNOWN.0 { 0 } else { start };
                for address in [BASE + ((page as u64) << 12), BASE + ((page as u64) << 12) + 0xfff] {
                    let expected = Frame { object: ObjectId(id), address: address - start };
                    prop_assert_eq!(space.locate(address), expected);
                }
            }
            prop_assert!(space.mappings.windows(2).all(|pair| pair[0].end <= pair[1].start));
        }
    }
}

#[test]
fn entries_are_given_away_again_after_a_cut() {
    let mut table = ProcessTable::default();
    table.adopt(1, "server");
    for cut in 0..1_000u32 {
        // More than have entries of their own, under names that change.
        for pid in 2..1_503 {
            table.forked(Task { pid, parent_pid: 1, tid: pid, time_ns: 0 });
            table.renamed(pid, pid, &format!("worker {cut} {}", pid % 300), true);
            table.get(pid).unwrap().note_sample();
        }
        table.get(1).unwrap().note_sample();
        let known: Vec<u32> = (1..1_503).map(|pid| table.get(pid).unwrap().index.0).collect();
        assert!(known.iter().all(|&index| (index as usize) < table.infos().len()));
        let mut own: Vec<u32> = known.into_iter().filter(|&index| !is_shared(ProcessIndex(index))).collect();
        own.sort_unstable();
        own.dedup();
        assert_eq!(own.len(), MAX_PROCESSES, "cut {cut}");
        (2..1_503).for_each(|pid| table.forget(pid));
        assert!(table.cut().is_empty());
        assert!(table.infos().len() <= MAX_PROCESSES + 301, "{}", table.infos().len());
        assert_eq!((table.shared.len(), table.ended.len()), (0, 0));
    }
    assert_eq!(table.infos()[table.get(1).unwrap().index.0 as usize].comm, "server");
}

#[test]
fn who_shared_an_entry_in_a_crowd_has_one_of_its_own_after_it() {
    let mut table = ProcessTable::default();
    for pid in 1..=MAX_PROCESSES as u32 {
        table.adopt(pid, "crowd");
        table.get(pid).unwrap().note_sample();
    }
    table.adopt(5_000, "late");
    table.adopt(5_001, "late");
    assert_eq!(table.get(5_000).unwrap().index, table.get(5_001).unwrap().index);
    let generation = table.get(5_000).unwrap().generation;
    assert!(table.cut().is_empty(), "none is free");
    (1..=10).for_each(|pid| table.forget(pid));
    assert_eq!(table.cut().len(), 2);
    for pid in [5_000, 5_001] {
        let process = table.get(pid).unwrap();
        assert_eq!(table.infos()[process.index.0 as usize], ProcessInfo { pid, comm: "late".into() });
        assert!(process.generation > generation);
    }
    assert!(table.shared.is_empty());
}

#[test]
fn an_entry_stays_while_samples_since_the_cut_refer_to_it() {
    let mut table = ProcessTable::default();
    table.adopt(1, "a");
    table.get(1).unwrap().note_sample();
    let index = table.get(1).unwrap().index;
    table.cut();
    table.get(1).unwrap().note_sample();
    table.forget(1);
    table.adopt(2, "b");
    assert_ne!(table.get(2).unwrap().index, index);
    table.cut();
    table.adopt(3, "c");
    assert_eq!(table.get(3).unwrap().index, index);
}

/// The windows of many targets end one after the other: what samples of an open one refer to stays.
#[test]
fn an_entry_stays_until_all_windows_of_its_samples_are_handed_over() {
    let mut table = ProcessTable::default();
    (1..=MAX_PROCESSES as u32).for_each(|pid| table.adopt(pid, "crowd"));
    let index = table.get(1).unwrap().index;
    table.get(1).unwrap().note_sample();
    table.adopt(5_000, "late");
    let shared = table.get(5_000).unwrap().index;
    table.forget(1);
    table.forget(5_000);
    table.end_round();
    table.adopt(5_001, "other");
    assert_eq!((table.infos()[index.0 as usize].pid, table.infos()[shared.0 as usize].pid), (1, 5_000));
    assert!(is_shared(table.get(5_001).unwrap().index), "none is free");
    assert_eq!(table.end_round(), [5_001], "it has that of the first");
    table.get(5_001).unwrap().note_sample();
    table.end_round();
    table.get(5_001).unwrap().note_sample();
    table.forget(5_001);
    table.end_round();
    table.adopt(5_002, "next");
    assert!(is_shared(table.get(5_002).unwrap().index), "it was sampled in the last round");
    assert_eq!(table.end_round(), [5_002]);
}
