//! Where a probe connects to, with listeners that count who comes.

use std::{
    net::{IpAddr, Ipv4Addr},
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

use http::Method;
use onceward::{
    Key, Scope,
    clock::Timestamp,
    record::{AttemptId, Fence, RecordId},
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpListener,
};

use super::*;
use crate::config::Template;

const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// Public as far as a probe knows, and nobody is there.
const NOBODY: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));

/// Answers all with the same, and counts the connections.
struct Host {
    port: u16,
    connections: Arc<AtomicUsize>,
}

impl Host {
    async fn that_says(answer: String) -> Host {
        let listener = TcpListener::bind((LOOPBACK, 0)).await.expect("a listener");
        let port = listener.local_addr().expect("an address").port();
        let connections = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&connections);
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                counted.fetch_add(1, Ordering::SeqCst);
                // A request without a body is small enough to come at once.
                let _ = stream.read(&mut [0; 4096]).await;
                let _ = stream.write_all(answer.as_bytes()).await;
            }
        });
        Host { port, connections }
    }

    async fn that_charged() -> Host {
        let head = "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 7\r\n\r\n";
        Host::that_says(format!("{head}charged")).await
    }

    fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }
}

/// Says in turn where a name leads to, the last one again and again.
struct Names {
    turns: Mutex<Vec<Vec<IpAddr>>>,
    asked: AtomicUsize,
}

impl Names {
    fn that_lead_to(turns: &[&[IpAddr]]) -> Arc<Names> {
        let turns = turns.iter().rev().map(|turn| turn.to_vec()).collect();
        Arc::new(Names { turns: Mutex::new(turns), asked: AtomicUsize::new(0) })
    }
}

impl Resolve for Names {
    fn resolve(&self, _: Name) -> Resolving {
        self.asked.fetch_add(1, Ordering::SeqCst);
        let mut turns = self.turns.lock().expect("not poisoned");
        let turn = if turns.len() > 1 { turns.pop() } else { turns.last().cloned() };
        let found = turn.unwrap_or_default().into_iter().map(|ip| SocketAddr::new(ip, 0));
        let found: Addrs = Box::new(found.collect::<Vec<_>>().into_iter());
        Box::pin(async { Ok(found) })
    }
}

/// What a probe finds at this host, which answers 200 when the work was done.
async fn ask(names: Arc<dyn Resolve>, host: &str, port: u16, allow_private: bool) -> Finding {
    let url = format!("http://{host}:{port}/charges?key={{key}}");
    let settings = ProbeSettings {
        url: Template::parse(&url).expect("a template"),
        method: Method::GET,
        headers: Vec::new(),
        timeout: Duration::from_millis(500),
        allow_private,
        completed: Condition { status: vec![StatusCode::OK], is: None },
        reply_status: ReplyStatus::Is(200),
        reply_body: None,
        not_executed: Some((Condition { status: vec![StatusCode::NOT_FOUND], is: None }, true)),
    };
    let probe = HttpProbe::new(Arc::new(settings), names).expect("a client");
    let at = Timestamp::from_micros(1_000_000);
    let scope = Scope::new("shop").expect("a scope");
    let key = Key::new("order-0000000000000001").expect("a key");
    let unknown = Unknown {
        id: RecordId { scope, key },
        operation: "op".to_owned(),
        generation: 1,
        attempt: AttemptId::random(),
        fence: Fence::next(None, at),
        attempt_number: 1,
        route: "pay".into(),
        method: "POST".into(),
        path: "/charges".into(),
        open_effect: None,
        created_at: at,
        started_at: at,
        why: None,
        probe: 1,
    };
    probe.ask(&unknown).await
}

fn is_charged(finding: &Finding) -> bool {
    matches!(finding, Finding::Completed(reply) if reply.status == StatusCode::OK)
}

#[tokio::test]
async fn a_redirect_is_not_followed_and_says_nothing() {
    let elsewhere = Host::that_charged().await;
    for status in [301, 302, 303, 307, 308] {
        let to = format!("http://127.0.0.1:{}/charges", elsewhere.port);
        let redirect = format!(
            "HTTP/1.1 {status} Elsewhere\r\nLocation: {to}\r\nConnection: close\r\n\
             Content-Length: 0\r\n\r\n"
        );
        let asked = Host::that_says(redirect).await;
        let found = ask(Arc::new(System), "127.0.0.1", asked.port, true).await;
        assert_eq!(found, Finding::StillUnknown, "{status}");
        assert_eq!((asked.connections(), elsewhere.connections()), (1, 0), "{status}");
    }
    assert!(is_charged(&ask(Arc::new(System), "127.0.0.1", elsewhere.port, true).await));
    assert_eq!(elsewhere.connections(), 1);
}

/// As the system looks it up.
#[tokio::test]
async fn a_name_of_this_machine_is_asked_only_where_that_is_allowed() {
    let host = Host::that_charged().await;
    let found = ask(Arc::new(System), "localhost", host.port, false).await;
    assert_eq!((found, host.connections()), (Finding::StillUnknown, 0));
    assert!(is_charged(&ask(Arc::new(System), "localhost", host.port, true).await));
    assert_eq!(host.connections(), 1);
}

#[tokio::test]
async fn of_several_addresses_of_a_name_none_that_is_private_is_connected_to() {
    let host = Host::that_charged().await;
    for turn in [[LOOPBACK, NOBODY], [NOBODY, LOOPBACK]] {
        let names = Names::that_lead_to(&[&turn]);
        let found = ask(names, "bank.example", host.port, false).await;
        assert_eq!((found, host.connections()), (Finding::StillUnknown, 0), "{turn:?}");
    }
    let names = Names::that_lead_to(&[&[LOOPBACK, NOBODY]]);
    assert!(is_charged(&ask(names, "bank.example", host.port, true).await));
}

/// A name that is public when it is checked, and private a moment later.
#[tokio::test]
async fn what_is_connected_to_is_what_was_checked() {
    let host = Host::that_charged().await;
    let names = Names::that_lead_to(&[&[NOBODY], &[LOOPBACK]]);
    let found = ask(names.clone(), "bank.example", host.port, false).await;
    assert_eq!((found, host.connections()), (Finding::StillUnknown, 0));
    assert_eq!(names.asked.load(Ordering::SeqCst), 1, "looked up once");
    // The next question looks it up again, and checks it again.
    let found = ask(names.clone(), "bank.example", host.port, false).await;
    assert_eq!((found, host.connections()), (Finding::StillUnknown, 0));
    let found = ask(names.clone(), "bank.example", host.port, true).await;
    assert!(is_charged(&found), "the same name, where that is allowed");
}
