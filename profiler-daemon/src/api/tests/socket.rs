//! The socket: its rights, who else may have it, and who may use it.

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::process::Command;

use nix::unistd::{Group, geteuid};

use super::*;

fn is_root(what: &str) -> bool {
    let is = geteuid().is_root();
    if !is {
        println!("skipped: {what} needs root");
    }
    is
}

#[test]
fn it_has_the_mode_and_group_of_the_settings_and_goes_with_its_server() {
    let own = Group::from_gid(nix::unistd::getegid()).unwrap().unwrap();
    let mut daemon = Daemon::with(ApiBounds::default(), |settings, _| {
        settings.listen.group = own.name.clone();
        settings.listen.mode = "0640".parse().unwrap();
    });
    let found = fs::metadata(daemon.socket()).unwrap();
    assert_eq!((found.mode() & 0o777, found.gid()), (0o640, own.gid.as_raw()));
    assert!(found.file_type().is_socket());
    assert_eq!(daemon.server.as_ref().unwrap().notes(), Vec::<String>::new());
    drop(daemon.server.take());
    assert!(!daemon.socket().exists());
}

#[test]
fn a_group_that_is_missing_is_said() {
    if Group::from_name("sweetspot").unwrap().is_none() {
        let daemon = Daemon::new();
        assert_eq!(fs::metadata(daemon.socket()).unwrap().mode() & 0o777, 0o600);
        assert!(daemon.server.as_ref().unwrap().notes()[0].contains("groupadd --system sweetspot"));
    }
    let mut settings = DaemonSettings::default();
    settings.listen.group = "no-such-group".to_owned();
    let error = super::super::start(&settings, command::channel().0).err().unwrap().to_string();
    assert!(error.contains("there is no group no-such-group"), "{error}");
}

#[test]
fn what_a_dead_daemon_left_is_replaced_and_a_live_one_is_not() {
    let daemon = Daemon::new();
    let (commands, _asked, _publisher) = command::channel();
    let error = super::super::start(&daemon.settings, commands.clone()).err().unwrap().to_string();
    assert!(error.contains("another sweetspot answers at"), "{error}");
    assert_eq!(daemon.get("/healthz").status, 200);

    let left = daemon.folder.path().join("left.sock");
    drop(std::os::unix::net::UnixListener::bind(&left).unwrap());
    assert!(left.exists());
    let mut settings = daemon.settings.clone();
    settings.listen.socket = left.clone();
    let server = super::super::start(&settings, commands.clone()).unwrap();
    // Another one put its own there: it is not ours to remove.
    fs::remove_file(&left).unwrap();
    fs::write(&left, "").unwrap();
    drop(server);
    assert!(left.exists());
    let error = super::super::start(&settings, commands).err().unwrap().to_string();
    assert!(error.contains("is not a socket"), "{error}");
}

/// A client of another user: the status that it got.
fn as_user(daemon: &Daemon, user: u32, group: u32, groups: &[u32]) -> String {
    // In Perl, which every Debian has.
    const CLIENT: &str = r#"
        use Socket;
        socket(my $s, AF_UNIX, SOCK_STREAM, 0) or die;
        if (!connect($s, pack_sockaddr_un($ARGV[0]))) { print "denied"; exit }
        syswrite $s, "GET /v1/status HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
        my $line = <$s>;
        print((split / /, $line)[1]);"#;
    let listed = groups.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
    let groups = if groups.is_empty() { "--clear-groups".to_owned() } else { format!("--groups={listed}") };
    let output = Command::new("setpriv")
        .args([&format!("--reuid={user}"), &format!("--regid={group}"), &groups])
        .args(["perl", "-e", CLIENT])
        .arg(daemon.socket())
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn other_users_are_refused_and_members_of_the_group_are_not() {
    if !is_root("being another user") {
        return;
    }
    let group = Group::from_name("games").unwrap().unwrap();
    let gid = group.gid.as_raw();
    let daemon = Daemon::with(ApiBounds::default(), |settings, _| settings.listen.group = group.name.clone());
    fs::set_permissions(daemon.folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    assert_eq!(as_user(&daemon, 0, 0, &[]), "200");
    assert_eq!(as_user(&daemon, 54_321, gid, &[]), "200");
    assert_eq!(as_user(&daemon, 54_321, 54_321, &[54_322, gid]), "200");
    assert_eq!(as_user(&daemon, 54_321, 54_321, &[54_322]), "denied");
    // Where the mode lets them in by mistake, the peer is asked again.
    fs::set_permissions(daemon.socket(), fs::Permissions::from_mode(0o666)).unwrap();
    assert_eq!(as_user(&daemon, 54_321, 54_321, &[54_322]), "403");
    assert_eq!(as_user(&daemon, 54_321, gid, &[]), "200");
}

/// Whoever is let in no more is refused on the connection that he has, too.
#[test]
fn another_group_counts_for_the_next_request() {
    if !is_root("being another user") {
        return;
    }
    const CLIENT: &str = r#"
        use Socket;
        socket(my $s, AF_UNIX, SOCK_STREAM, 0) or die;
        connect($s, pack_sockaddr_un($ARGV[0])) or die;
        $| = 1;
        while (<STDIN>) {
            syswrite $s, "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n";
            sysread $s, my $answer, 4096;
            print((split / /, $answer)[1], "\n");
        }"#;
    let group = Group::from_name("games").unwrap().unwrap();
    let mut daemon =
        Daemon::with(ApiBounds::default(), |settings, _| settings.listen.group = group.name.clone());
    fs::set_permissions(daemon.folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let mut client = Command::new("setpriv")
        .args(["--reuid=54321", &format!("--regid={}", group.gid), "--clear-groups", "perl", "-e", CLIENT])
        .arg(daemon.socket())
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut answers = std::io::BufReader::new(client.stdout.take().unwrap());
    let mut asks = client.stdin.take().unwrap();
    let mut ask = || {
        asks.write_all(b"\n").unwrap();
        let mut status = String::new();
        std::io::BufRead::read_line(&mut answers, &mut status).unwrap();
        status.trim().to_owned()
    };
    assert_eq!([ask(), ask()], ["200", "200"]);
    let mut settings = daemon.settings.clone();
    settings.listen.group = "root".to_owned();
    daemon.server.as_mut().unwrap().reload(&settings).unwrap();
    assert_eq!(ask(), "403");
    drop(asks);
    client.wait().unwrap();
}

#[test]
fn new_settings_take_its_place_and_wrong_ones_change_nothing() {
    let mut daemon = Daemon::new();
    let old = daemon.socket();
    let mut settings = daemon.settings.clone();
    settings.listen.group = "no-such-group".to_owned();
    settings.listen.socket = daemon.folder.path().join("new.sock");
    assert!(daemon.server.as_mut().unwrap().reload(&settings).is_err());
    assert_eq!(daemon.get("/healthz").status, 200);
    settings.listen.group = daemon.settings.listen.group.clone();
    daemon.server.as_mut().unwrap().reload(&settings).unwrap();
    assert!(!old.exists());
    daemon.settings = settings;
    assert_eq!(daemon.get("/healthz").status, 200);
    // The same again.
    let settings = daemon.settings.clone();
    daemon.server.as_mut().unwrap().reload(&settings).unwrap();
    assert_eq!(daemon.get("/healthz").status, 200);
}
