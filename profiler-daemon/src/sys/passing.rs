//! Messages over a stream socket, and the files that go with them.
//!
//! A message is its length (four bytes, the lowest first) and so many bytes. A descriptor travels with the first of them.

use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, ControlMessage, ControlMessageOwned, MsgFlags, SockFlag, SockType, UnixAddr, recvmsg,
    sendmsg, socketpair,
};

const LENGTH: usize = 4;

/// Two sockets that are connected with each other.
pub(crate) fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(socketpair(AddressFamily::Unix, SockType::Stream, None, SockFlag::SOCK_CLOEXEC)?)
}

/// Sends a message. `wait` is called before each part of it, and may say that it has taken too long.
pub(crate) fn send(
    socket: BorrowedFd<'_>,
    body: &[u8],
    file: Option<BorrowedFd<'_>>,
    wait: &mut dyn FnMut() -> io::Result<()>,
) -> io::Result<()> {
    let message = with_length(body)?;
    let descriptors: Vec<RawFd> = file.iter().map(|file| file.as_raw_fd()).collect();
    let mut sent = 0;
    while sent < message.len() {
        wait()?;
        let rights = [ControlMessage::ScmRights(&descriptors)];
        let with = if sent == 0 && file.is_some() { &rights[..] } else { &[] };
        let part = [IoSlice::new(&message[sent..])];
        match sendmsg::<UnixAddr>(socket.as_raw_fd(), &part, with, MsgFlags::MSG_NOSIGNAL, None) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(bytes) => sent += bytes,
            Err(Errno::EINTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Sends a short message if the socket has room for it now; whether it did. After an error the connection is of no use any more.
pub(crate) fn send_at_once(socket: BorrowedFd<'_>, body: &[u8]) -> io::Result<bool> {
    let message = with_length(body)?;
    let flags = MsgFlags::MSG_NOSIGNAL | MsgFlags::MSG_DONTWAIT;
    match sendmsg::<UnixAddr>(socket.as_raw_fd(), &[IoSlice::new(&message)], &[], flags, None) {
        Ok(bytes) if bytes == message.len() => Ok(true),
        Ok(_) => Err(io::ErrorKind::WriteZero.into()), // the kernel divides none of less than a page
        Err(Errno::EAGAIN | Errno::EINTR) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

fn with_length(body: &[u8]) -> io::Result<Vec<u8>> {
    let len = u32::try_from(body.len()).map_err(|_| io::ErrorKind::FileTooLarge)?;
    Ok([&len.to_le_bytes()[..], body].concat())
}

/// The next message, and the file that came with it; none where the other side has closed. One of more than `most` bytes is an error.
/// `wait` is called before each part of it, and may say that it has taken too long.
pub(crate) fn receive(
    socket: BorrowedFd<'_>,
    most: usize,
    wait: &mut dyn FnMut() -> io::Result<()>,
) -> io::Result<Option<(Vec<u8>, Option<File>)>> {
    let mut file = None;
    let mut length = [0; LENGTH];
    if !fill(socket, &mut length, &mut file, wait)? {
        return Ok(None);
    }
    let len = u32::from_le_bytes(length) as usize;
    if len > most {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "a message is too long"));
    }
    let mut body = vec![0; len];
    if !fill(socket, &mut body, &mut file, wait)? {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(Some((body, file)))
}

/// Fills `bytes`; `false` where the other side has closed before the first.
fn fill(
    socket: BorrowedFd<'_>,
    bytes: &mut [u8],
    file: &mut Option<File>,
    wait: &mut dyn FnMut() -> io::Result<()>,
) -> io::Result<bool> {
    let mut filled = 0;
    while filled < bytes.len() {
        wait()?;
        match part(socket, &mut bytes[filled..]) {
            Ok((0, _)) if filled == 0 => return Ok(false),
            Ok((0, _)) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok((count, came)) => {
                filled += count;
                *file = came.or(file.take());
            }
            Err(Errno::EINTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(true)
}

/// What comes next, and the first file that comes with it: no message of ours has more, and any others are closed.
fn part(socket: BorrowedFd<'_>, bytes: &mut [u8]) -> nix::Result<(usize, Option<File>)> {
    let mut control = nix::cmsg_space!([RawFd; 1]);
    let mut parts = [IoSliceMut::new(bytes)];
    let flags = MsgFlags::MSG_CMSG_CLOEXEC;
    let received = recvmsg::<UnixAddr>(socket.as_raw_fd(), &mut parts, Some(&mut control), flags)?;
    let mut files = Vec::new();
    for message in received.cmsgs()? {
        if let ControlMessageOwned::ScmRights(descriptors) = message {
            // SAFETY: the kernel has just made these descriptors for this message, and nobody else knows of them.
            files.extend(descriptors.into_iter().map(|fd| File::from(unsafe { OwnedFd::from_raw_fd(fd) })));
        }
    }
    Ok((received.bytes, files.into_iter().next()))
}

/// Waits for nothing: the call that follows does.
pub(crate) fn patiently() -> io::Result<()> {
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Seek, Write};
    use std::os::fd::AsFd;

    use super::*;

    fn file(text: &str) -> File {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(text.as_bytes()).unwrap();
        file.rewind().unwrap();
        file
    }

    #[test]
    fn a_message_arrives_whole_with_its_file() {
        let (one, other) = pair().unwrap();
        let body: Vec<u8> = (0..1_000_000).map(|at| at as u8).collect();
        let (sent, passed) = (body.clone(), file("held"));
        let sender = std::thread::spawn(move || {
            send(one.as_fd(), &sent, Some(passed.as_fd()), &mut patiently).unwrap();
            send(one.as_fd(), b"", None, &mut patiently).unwrap();
        });
        let (received, came) = receive(other.as_fd(), 1 << 20, &mut patiently).unwrap().unwrap();
        assert!(received == body);
        let mut text = String::new();
        came.unwrap().read_to_string(&mut text).unwrap();
        assert_eq!(text, "held");
        let (empty, none) = receive(other.as_fd(), 1 << 20, &mut patiently).unwrap().unwrap();
        assert!(empty.is_empty() && none.is_none());
        sender.join().unwrap();
        assert!(
            receive(other.as_fd(), 1 << 20, &mut patiently).unwrap().is_none(),
            "the other side has closed"
        );
    }

    #[test]
    fn a_message_that_there_is_no_room_for_is_not_begun() {
        let (one, other) = pair().unwrap();
        let body = [7; 1_000];
        let mut sent = 0;
        while send_at_once(one.as_fd(), &body).unwrap() {
            sent += 1;
        }
        assert!(sent > 10, "{sent}");
        for _ in 0..sent {
            let received = receive(other.as_fd(), 1_000, &mut patiently).unwrap();
            assert_eq!(received.unwrap().0, body);
        }
        assert!(send_at_once(one.as_fd(), &body).unwrap());
    }

    #[test]
    fn what_is_too_long_or_cut_short_is_an_error() {
        let (one, other) = pair().unwrap();
        send(one.as_fd(), &[7; 100], None, &mut patiently).unwrap();
        assert!(receive(other.as_fd(), 99, &mut patiently).is_err());
        let (one, other) = pair().unwrap();
        (&File::from(one)).write_all(&[9, 0, 0, 0, 1, 2]).unwrap();
        assert!(receive(other.as_fd(), 99, &mut patiently).is_err());
    }
}
