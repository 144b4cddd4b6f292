//! Connections of which an answer is read that comes instead of `100 Continue`.
//!
//! A backend may refuse a long body before it is sent (`Expect: 100-continue`). ureq 3.5 has read that answer while it waits
//! for leave to send the body, and then waits for more of it before it looks at it: until the timeout, where the
//! backend keeps the connection open. So what was read and not consumed is offered once more before anything is waited for.

use ureq::Error;
use ureq::unversioned::transport::{
    Buffers, ConnectionDetails, Connector, DefaultConnector, NextTimeout, Transport,
};

/// Connects as ureq does by default.
#[derive(Debug, Default)]
pub(super) struct EarlyAnswers(DefaultConnector);

/// A connection.
#[derive(Debug)]
pub(super) struct Offering {
    inner: Box<dyn Transport>,
    /// Bytes of the unread input that were offered again.
    offered: usize,
}

impl Connector for EarlyAnswers {
    type Out = Offering;

    fn connect(
        &self,
        details: &ConnectionDetails<'_>,
        chained: Option<()>,
    ) -> Result<Option<Offering>, Error> {
        Ok(self.0.connect(details, chained)?.map(|inner| Offering { inner, offered: 0 }))
    }
}

impl Transport for Offering {
    fn buffers(&mut self) -> &mut dyn Buffers {
        self.inner.buffers()
    }

    fn transmit_output(&mut self, amount: usize, timeout: NextTimeout) -> Result<(), Error> {
        self.inner.transmit_output(amount, timeout)
    }

    fn await_input(&mut self, timeout: NextTimeout) -> Result<bool, Error> {
        let unread = self.inner.buffers().input().len();
        if unread > 0 && unread != self.offered {
            self.offered = unread;
            return Ok(true);
        }
        self.offered = 0;
        self.inner.await_input(timeout)
    }

    fn is_open(&mut self) -> bool {
        self.inner.is_open()
    }

    fn is_tls(&self) -> bool {
        self.inner.is_tls()
    }
}
