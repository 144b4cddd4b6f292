use super::*;

fn read(room: &Room, bytes: u64) -> bool {
    room.read(bytes, || Some(vec![0; bytes as usize])).is_some()
}

#[test]
fn no_more_is_taken_than_there_is_and_all_is_given_back() {
    let memory = SymbolMemory::new(100);
    let (one, other) = (Room::new(&memory), Room::new(&memory));
    assert!(read(&one, 60) && !read(&other, 60) && read(&other, 40));
    assert!(!read(&one, 1) && !read(&one, u64::MAX));
    assert_eq!((memory.left(), memory.peak()), (0, 100));
    assert!(one.read(0, || None).is_none() && memory.left() == 0);
    one.release();
    assert_eq!(memory.left(), 60);
    drop(other);
    assert_eq!((memory.left(), memory.peak()), (100, 100));
}

#[test]
fn names_that_are_asked_for_while_stacks_are_unwound_have_their_half() {
    let memory = SymbolMemory::new(100);
    let (one, other) = (Room::new(&memory), Room::new(&memory));
    assert!(read(&one, 60));
    memory.share_with_names();
    let refusals = memory.refusals();
    assert!(refusals > 0, "what is too much has to go");
    memory.share_with_names();
    assert!(memory.refusals() == refusals && !read(&other, 1));
    one.release();
    assert!(read(&other, 50) && !read(&one, 1) && memory.left() == 50);
    assert!(memory.take_kept(25) && !memory.take_kept(1) && memory.take(25) && !memory.take(1));
    memory.give_back_kept(25);
    assert_eq!((memory.kept(), memory.left(), memory.peak()), (0, 25, 100));
}

#[test]
fn tables_give_way_and_come_back_once_each() {
    let memory = SymbolMemory::new(100);
    let (light, heavy) = (Room::new(&memory), Room::new(&memory));
    assert!(read(&light, 80) && !read(&heavy, 50));
    assert_eq!(memory.refusals(), 1);
    assert!(heavy.decide(true) && light.decide(false), "both are read anew, or not at all");
    assert!(read(&heavy, 50) && !read(&light, 20), "there would be room, but it has to stay away");
    assert!(!heavy.decide(true), "nothing changes");
    assert!(light.decide(true) && read(&light, 20));
    assert_eq!((memory.evictions(), memory.rereads()), (1, 2));
}

#[test]
fn names_and_symbol_tables_have_a_half_together_and_names_half_of_that() {
    let memory = SymbolMemory::new(100);
    assert!(
        memory.take_loaded(40) && !memory.take_loaded(11) && memory.take_kept(10) && !memory.take_kept(1)
    );
    memory.give_back_loaded(40);
    assert!(memory.take_kept(15) && !memory.take_kept(1) && memory.take_loaded(25) && !memory.take_loaded(1));
    assert_eq!((memory.kept(), memory.loaded(), memory.held(), memory.lacking(60)), (25, 25, 50, 10));
    memory.set_cap(40);
    assert!(memory.left() == 0 && memory.lacking(5) == 15 && !memory.take(1));
}

#[test]
fn targets_take_by_need_and_the_heaviest_tables_stay_whosever_they_are() {
    let of_one = SymbolMemory::new(100);
    let of_other = of_one.for_another();
    let rooms = [Room::new(&of_one), Room::new(&of_one), Room::new(&of_other)];
    assert!(read(&rooms[0], 50) && read(&rooms[1], 40) && !read(&rooms[2], 60), "one may have nearly all");
    for (room, (bytes, weight)) in rooms.iter().zip([(50, 1.0), (40, 3.0), (60, 2.0)]) {
        room.ask(bytes, weight);
    }
    let staying = of_other.staying();
    let may_stay: Vec<bool> = rooms.iter().map(|room| staying.contains(&Arc::as_ptr(room))).collect();
    assert_eq!(may_stay, [false, true, true]);
    for (room, may_stay) in rooms.iter().zip(may_stay) {
        room.decide(may_stay);
    }
    assert!(read(&rooms[2], 60) && !read(&rooms[0], 1));
    assert_eq!((of_one.evictions(), of_one.rereads()), (1, 0));
    assert_eq!((of_other.evictions(), of_other.rereads()), (0, 1), "each target counts its own");
    drop(rooms);
    assert_eq!((of_one.held(), of_other.staying().len()), (0, 0));
}

#[test]
fn journals_have_a_quarter_to_which_others_give_way() {
    let memory = SymbolMemory::new(100);
    assert!(memory.take_loaded(50) && memory.take(50) && memory.left() == 0);
    let refusals = memory.refusals();
    assert!(memory.take_journal(25) && !memory.take_journal(1) && memory.take_journal(0));
    assert!(memory.refusals() > refusals && memory.lacking(0) == 25, "something has to go");
    memory.give_back_loaded(50);
    assert!(memory.take_loaded(25) && !memory.take_loaded(1));
    memory.give_back_journal(25);
    assert!(memory.take_loaded(25) && memory.held() == 100);
    let memory = SymbolMemory::new(100);
    assert!(memory.take_journal(20) && !read(&Room::new(&memory), 81) && memory.held() == 20);
}
