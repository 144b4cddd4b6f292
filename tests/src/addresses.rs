//! Addresses of this machine that are kept for a server that is down at times: no other program gets the port meanwhile.

use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpListener};
use std::os::fd::{AsRawFd, OwnedFd};

use anyhow::Result;
use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, SockaddrIn, bind, getsockname, listen, setsockopt, socket,
    sockopt,
};

/// An address at which connections are refused until somebody listens.
pub struct Reserved {
    address: SocketAddr,
    /// Bound, but never listened at.
    _socket: OwnedFd,
}

impl Reserved {
    /// Takes one that is free.
    ///
    /// # Errors
    ///
    /// If none is.
    pub fn new() -> Result<Reserved> {
        let socket = bound(SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0))?;
        let address: SockaddrIn = getsockname(socket.as_raw_fd())?;
        Ok(Reserved { address: SocketAddrV4::from(address).into(), _socket: socket })
    }

    /// Where it is.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

/// Listens at an address that a [`Reserved`] keeps, in this process or another.
///
/// # Errors
///
/// If the address cannot be bound, or is not one of IPv4.
pub fn listen_at(address: SocketAddr) -> Result<TcpListener> {
    let SocketAddr::V4(address) = address else { anyhow::bail!("{address} is not an address of IPv4") };
    let socket = bound(address)?;
    listen(&socket, Backlog::MAXCONN)?;
    Ok(socket.into())
}

fn bound(address: SocketAddrV4) -> Result<OwnedFd> {
    let socket = socket(AddressFamily::Inet, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
    setsockopt(&socket, sockopt::ReusePort, &true)?;
    bind(socket.as_raw_fd(), &SockaddrIn::from(address))?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use std::io::ErrorKind;
    use std::net::TcpStream;

    use super::*;

    #[test]
    fn a_reserved_address_refuses_connections_until_somebody_listens_and_again_afterwards() -> Result<()> {
        let reserved = Reserved::new()?;
        let refused = || TcpStream::connect(reserved.address()).map_err(|error| error.kind());
        assert_eq!(refused().err(), Some(ErrorKind::ConnectionRefused));
        let listener = listen_at(reserved.address())?;
        refused().map_err(|kind| anyhow::anyhow!("{kind}"))?;
        assert!(TcpListener::bind(reserved.address()).is_err(), "somebody else gets the address");
        drop(listener);
        assert_eq!(refused().err(), Some(ErrorKind::ConnectionRefused));
        assert!(TcpListener::bind(reserved.address()).is_err(), "somebody else gets the address");
        Ok(())
    }
}
