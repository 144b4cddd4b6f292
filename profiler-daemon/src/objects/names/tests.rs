use std::path::Path;

use symbolizer::{Limits, NoDebugFiles};

use super::super::{Content, MappedObject};
use super::*;
use crate::roots::RootView;
use crate::sys::procfs;

const SECOND_NS: u64 = 1_000_000_000;

/// An object that anyone has: the kernel's code in every process.
fn object() -> Arc<MappedObject> {
    let content = Content::Image(Arc::new(procfs::vdso_image().unwrap()));
    Arc::new(MappedObject { path: "vdso".to_owned(), content, view: RootView::Ours, names: Arc::default() })
}

fn load(object: &Arc<MappedObject>) -> Box<Loaded> {
    let Content::Image(image) = &object.content else { panic!("it is in memory") };
    let image = Arc::clone(image) as Arc<dyn symbolizer::ReadAt>;
    let read = symbolizer::Object::load_owned(Limits::default(), image, Path::new("vdso"), &NoDebugFiles);
    Box::new(Loaded::new(read.unwrap(), object, None))
}

/// Room for this many such objects, and as many names.
fn room(objects: u64) -> NameRoom {
    NameRoom::new(SymbolMemory::new(2 * objects * load(&object()).object.facts().held_bytes))
}

/// Asks for its names, as a cut does.
fn ask(room: &NameRoom, object: &Arc<MappedObject>) {
    let loaded = room.take_loaded(&object.names).unwrap_or_else(|| {
        room.count_source();
        load(object)
    });
    room.keep_loaded(&object.names, loaded);
}

fn stays(objects: &[Arc<MappedObject>]) -> Vec<bool> {
    objects.iter().map(|object| object.names.rank().is_some()).collect()
}

#[test]
fn what_was_asked_least_often_goes_first_and_nothing_stays_for_ever() {
    let room = room(2);
    let objects: Vec<Arc<MappedObject>> = (0..5).map(|_| object()).collect();
    (0..3).for_each(|_| ask(&room, &objects[0]));
    ask(&room, &objects[1]);
    assert_eq!((room.counts().sources, room.counts().reused), (2, 2));
    ask(&room, &objects[2]);
    assert_eq!(stays(&objects), [true, false, true, false, false]);
    ask(&room, &objects[3]);
    ask(&room, &objects[4]);
    assert_eq!(room.counts().evicted, 3);
    assert!(room.0.memory.held() <= room.0.memory.cap() / 2);
    for _ in 0..3 {
        objects[1..].iter().for_each(|object| ask(&room, object));
    }
    assert!(!stays(&objects)[0], "it was of use long ago");
    drop(objects);
    assert_eq!(room.0.memory.held(), 0);
}

#[test]
fn what_is_too_big_is_dropped_and_counted_by_nobody() {
    let room = NameRoom::new(SymbolMemory::new(100));
    let object = object();
    ask(&room, &object);
    assert_eq!((stays(&[object]), room.0.memory.held(), room.counts().evicted), (vec![false], 0, 0));
}

#[test]
fn no_more_objects_stay_than_may_hold_descriptors() {
    let room = NameRoom::for_at_most(20, SymbolMemory::new(1 << 30));
    let objects: Vec<Arc<MappedObject>> = (0..20 + 3).map(|_| object()).collect();
    objects.iter().for_each(|object| ask(&room, object));
    assert_eq!(stays(&objects).into_iter().filter(|stays| *stays).count(), 20);
}

#[test]
fn an_object_goes_with_the_one_whose_file_it_is_and_its_names_stay() {
    let room = room(10);
    let owner = object();
    let names = Arc::clone(&owner.names); // as another target has them
    ask(&room, &owner);
    names.keep(&room, room.begin(), About::default(), &[(1, Ok(Vec::new()))]);
    let taken = load(&owner);
    assert!(room.0.memory.loaded() > 0 && names.rank().is_some());
    drop(owner);
    assert!(room.0.memory.loaded() == 0 && names.rank().is_none() && room.0.memory.kept() > 0);
    room.keep_loaded(&names, taken); // it was being asked meanwhile
    assert!(room.0.memory.loaded() == 0 && names.rank().is_none());
    assert_eq!(names.known(&[1], room.begin()), [Some(Ok(Vec::new()))]);
}

#[test]
fn loaded_objects_give_way_to_names_and_to_what_is_to_be_read() {
    let room = room(4);
    let objects: Vec<Arc<MappedObject>> = (0..4).map(|_| object()).collect();
    objects.iter().for_each(|object| ask(&room, object));
    assert_eq!(stays(&objects), [true; 4]);
    let cap = room.0.memory.cap();
    room.make_room(cap - cap / 8, Naming::default());
    assert!(room.0.memory.lacking(cap - cap / 8) == 0 && stays(&objects).contains(&true));
    objects.iter().for_each(|object| ask(&room, object));
    let names =
        |count: u64| -> Vec<(u64, FoundFunctions)> { (0..count).map(|at| (at, Ok(Vec::new()))).collect() };
    objects[0].names.keep(&room, room.begin(), About::default(), &names(10_000));
    let memory = &room.0.memory;
    assert!(memory.kept() <= memory.most_kept() && memory.kept() > memory.most_kept() - 200);
    assert!(memory.kept() + memory.loaded() <= cap / 2);
    room.give_up_all_loaded();
    assert!(memory.loaded() == 0 && memory.held() == memory.kept());
}

#[test]
fn what_is_not_known_well_is_looked_for_again_ever_more_rarely() {
    let room = room(1_000);
    let object = object();
    let unknown = Unknown { reason: "r".to_owned(), remedy: String::new() };
    let told: Vec<(u64, FoundFunctions)> = vec![(1, Err(unknown)), (2, Ok(Vec::new()))];
    let mut asked_again = Vec::new();
    for second in 0..2_000 {
        let now = Naming { number: second as u32, at_ns: second * SECOND_NS };
        let known = object.names.known(&[1, 2], now);
        if known[0].is_none() {
            asked_again.push(second);
            assert!(second == 0 || known[1].is_some() && object.names.rank().is_none(), "it is read anew");
            object.names.keep(&room, now, About::default(), &told);
            ask(&room, &object);
        }
    }
    assert_eq!(asked_again, [0, 100, 300, 700, 1_500]);
    let about = About { is_final: true, ..About::default() };
    object.names.clear();
    object.names.keep(&room, room.begin(), about, &told);
    let much_later = Naming { number: u32::MAX, at_ns: u64::MAX };
    object.names.known(&[1], much_later); // what was doubtful before
    object.names.keep(&room, room.begin(), About { is_final: true, ..About::default() }, &told);
    assert!(object.names.known(&[1], much_later)[0].is_some());
}
