//! Listeners as a process's watcher would have them, for tests.

use rondel_tcp::{TcpTransport, listen};
use rondel_transport_api::{
    Acceptor, Config, Endpoint, Incoming, Transport,
    handshake::{Handshake, Hello, Key, Purpose},
};
use std::{
    io::{Read, Write},
    net::{IpAddr, SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

/// The key of all tests.
pub(crate) const KEY: Key = Key([7; 32]);

/// A listener with a thread that authenticates whoever connects and delivers lane sockets.
pub(crate) struct Door {
    acceptor: Arc<Acceptor>,
    closes: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Door {
    /// Listens on an address of this host.
    pub(crate) fn open(ip: IpAddr) -> Self {
        let listener =
            listen::bind_listener(Some(SocketAddr::new(ip, 0)), &listen::Ports::ANY).expect("listen");
        let address = listener.local_addr().expect("bound");
        let acceptor = Arc::new(Acceptor::new(vec![address]).expect("an acceptor"));
        let closes = Arc::new(AtomicBool::new(false));
        let thread = std::thread::spawn({
            let (acceptor, closes) = (acceptor.clone(), closes.clone());
            move || serve(&listener, &acceptor, &closes)
        });
        Self { acceptor, closes, thread: Some(thread) }
    }

    /// What an endpoint of `rank` behind this door is opened with.
    pub(crate) fn config(&self, rank: u32, sockets_per_lane: u8) -> Config {
        Config {
            key: KEY,
            rank,
            acceptor: self.acceptor.clone(),
            linger: Duration::from_secs(2),
            silence: Duration::from_secs(4),
            socket_ifname: None,
            socket_family: None,
            sockets_per_lane,
        }
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        self.closes.store(true, Ordering::Relaxed);
        // A connection wakes the thread.
        let _ = TcpStream::connect(self.acceptor.addresses()[0]);
        if let Some(thread) = self.thread.take() {
            thread.join().expect("the listener's thread");
        }
    }
}

fn serve(listener: &TcpListener, acceptor: &Acceptor, closes: &AtomicBool) {
    listener.set_nonblocking(false).expect("blocking");
    while !closes.load(Ordering::Relaxed) {
        let Ok((stream, _)) = listener.accept() else { continue };
        stream.set_read_timeout(Some(Duration::from_secs(2))).expect("a timeout");
        if let Some(Hello { rank, purpose: Purpose::Lane { cookie, stripe } }) = welcome(&stream) {
            stream.set_nonblocking(true).expect("nonblocking");
            acceptor.deliver(Incoming { from: rank, cookie, stripe, stream });
        }
    }
}

/// The server's side of a handshake, blocking.
fn welcome(mut stream: &TcpStream) -> Option<Hello> {
    let mut handshake = Handshake::server(&KEY);
    let mut bytes = [0; 512];
    while !handshake.is_done() {
        let output = handshake.output().to_vec();
        if !output.is_empty() {
            stream.write_all(&output).ok()?;
            handshake.sent(output.len());
            continue;
        }
        let want = handshake.wants();
        let read = stream.read(&mut bytes[..want]).ok().filter(|&read| read > 0)?;
        handshake.handle_input(&bytes[..read]).ok()?;
    }
    handshake.hello()
}

/// Opens the loopback interface.
pub(crate) fn endpoint(config: &Config) -> Box<dyn Endpoint> {
    let ports = TcpTransport.discover(config).expect("ports");
    let lo = ports.iter().find(|port| port.name == "lo").expect("the listener's interface is a port");
    TcpTransport.open(lo, config).expect("an endpoint")
}
