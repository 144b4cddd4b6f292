//! The servers.

use std::fs;
use std::io::Write;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;

use crate::guards::{Running, open_to_all};
use crate::run::{run, wait_until};

/// An echo that computes in between, in Python, a thread for each client.
const PYTHON: &str = r"
import socketserver, sys
class Echo(socketserver.BaseRequestHandler):
    def handle(self):
        while data := self.request.recv(4096):
            x = 1
            for i in range(2000): x = (x * 31 + i) % 1000003
            self.request.sendall(data)
class Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = daemon_threads = True
Server(('127.0.0.1', int(sys.argv[1])), Echo).serve_forever()
";
/// The same in JavaScript, with files read by the runtime's own threads.
const NODE: &str = r"
require('net').createServer(client => {
  client.on('data', data => { let x = 1; for (let i = 0; i < 20000; i++) x = (x * 31 + i) % 1000003; client.write(data) });
  client.on('error', () => {});
}).listen(+process.argv[2], '127.0.0.1');
setInterval(() => require('fs').readFile('/etc/passwd', () => {}), 20);
";
/// The user for PostgreSQL, which refuses to run as root.
const POSTGRES: &[&str] = &["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"];

/// A server that runs.
pub struct Server {
    name: &'static str,
    running: Running,
    folder: TempDir,
    port: u16,
}

impl Server {
    /// All of them that can be tried.
    pub const NAMES: [&str; 4] = ["redis-server", "postgres", "python3", "node"];

    /// Starts one of them, listening on a port.
    pub fn start(name: &str, port: u16) -> Result<Server> {
        let folder = tempfile::tempdir()?;
        open_to_all(folder.path())?;
        let path = folder.path().to_string_lossy().into_owned();
        let (name, mut command) = match name {
            "redis-server" => {
                ("redis-server", command("redis-server", &["--save", "", "--dir", &path, "--port"]))
            }
            "python3" => ("python3", command("python3", &[&script(&folder, PYTHON)?])),
            "node" => ("node", command("node", &[&script(&folder, NODE)?])),
            "postgres" => ("postgres", postgres(&format!("{path}/data"), &path)?),
            other => bail!("no server `{other}`"),
        };
        command.arg(port.to_string()).stdout(Stdio::null()).stderr(Stdio::null());
        let server = Server { name, running: Running::start(&mut command)?, folder, port };
        wait_until("the server", || std::net::TcpStream::connect(("127.0.0.1", port)).is_ok())?;
        Ok(server)
    }

    /// The program's name.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Where it listens.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The processes that are attached to in turn: that which listens, and those that PostgreSQL has for its clients.
    pub fn processes(&self) -> Result<Vec<u32>> {
        let first = self.running.id();
        thread::sleep(Duration::from_secs(1)); // until all clients are there
        let children = fs::read_to_string(format!("/proc/{first}/task/{first}/children")).unwrap_or_default();
        let children = children.split_whitespace().filter_map(|pid| pid.parse().ok());
        let serves = |pid: &u32| {
            fs::read_to_string(format!("/proc/{pid}/cmdline")).is_ok_and(|line| line.contains("127.0.0.1"))
        };
        Ok(std::iter::once(first).chain(children.filter(serves)).collect())
    }

    /// Whether it runs.
    pub fn is_alive(&mut self) -> bool {
        matches!(self.running.try_wait(), Ok(None))
    }

    /// Asks it to end, and returns whether it did.
    pub fn end(&mut self) -> Result<bool> {
        kill(Pid::from_raw(self.running.id() as i32), Signal::SIGTERM)?;
        wait_until("the server's end", || !matches!(self.running.try_wait(), Ok(None)))?;
        let status = self.running.wait()?;
        let _ = &self.folder; // until here it is in use
        use std::os::unix::process::ExitStatusExt;
        Ok(status.success() || status.signal() == Some(Signal::SIGTERM as i32) || status.code() == Some(143))
    }
}

fn command(program: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.args(arguments);
    command
}

fn script(folder: &TempDir, text: &str) -> Result<String> {
    let path = folder.path().join("server");
    fs::File::create(&path)?.write_all(text.as_bytes())?;
    Ok(path.to_string_lossy().into_owned())
}

fn postgres(data: &str, sockets: &str) -> Result<Command> {
    let as_postgres = |words: &[&str]| command(POSTGRES[0], &[&POSTGRES[1..], words].concat());
    run(&mut as_postgres(&["initdb", "-A", "trust", "-U", "postgres", "-D", data]))?
        .expect_status(0)
        .context("initdb")?;
    Ok(as_postgres(&["postgres", "-D", data, "-k", sockets, "-c", "fsync=off", "-h", "127.0.0.1", "-p"]))
}
