use std::sync::Mutex;

use tokio::{net::TcpListener, runtime::Runtime};

use super::*;

/// Both ends of one connection through a proxy, and the faults that it told of.
struct Ends {
    near: TcpStream,
    far: TcpStream,
    faults: Arc<Mutex<Vec<String>>>,
}

/// A connection with this fate, given to a test.
fn with<F: Future<Output = ()>>(fate: Fate, test: impl FnOnce(Ends) -> F) {
    let runtime = Runtime::new().expect("a runtime");
    let faults = Arc::<Mutex<Vec<String>>>::default();
    let heard = Arc::clone(&faults);
    let on_fault: OnFault =
        Arc::new(move |kind, _| heard.lock().expect("lock").push(kind.to_owned()));
    let proxy = Proxy::start(runtime.handle(), move |_| fate, on_fault).expect("a proxy");
    runtime.block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        proxy.lead_to(Some(listener.local_addr().expect("bound")));
        let near = TcpStream::connect(proxy.address).await.expect("connected");
        let (far, _) = listener.accept().await.expect("accepted");
        let whole = timeout(Duration::from_secs(20), test(Ends { near, far, faults }));
        whole.await.expect("in time");
    });
}

impl Ends {
    /// Sends ten bytes from the near end and reads what comes at the far end until it is over.
    async fn ten_bytes_there(&mut self) -> (String, io::Result<usize>) {
        self.near.write_all(b"0123456789").await.expect("written");
        let mut read = Vec::new();
        let ended = self.far.read_to_end(&mut read).await;
        (String::from_utf8(read).expect("text"), ended)
    }

    fn faults(&self) -> Vec<String> {
        self.faults.lock().expect("lock").clone()
    }
}

/// Whether a connection is silent: nothing to read, and no end of it.
async fn silent(stream: &mut TcpStream) -> bool {
    timeout(Duration::from_millis(200), stream.read_u8()).await.is_err()
}

async fn exactly(stream: &mut TcpStream, count: usize) -> String {
    let mut read = vec![0; count];
    stream.read_exact(&mut read).await.expect("read");
    String::from_utf8(read).expect("text")
}

fn is_reset(ended: io::Result<impl Sized>) -> bool {
    ended.is_err_and(|error| error.kind() == io::ErrorKind::ConnectionReset)
}

#[test]
fn an_honest_connection_passes_everything_both_ways_and_its_end() {
    with(Fate::Honest, async |mut ends| {
        ends.near.write_all(b"there").await.expect("written");
        ends.far.write_all(b"back").await.expect("written");
        assert_eq!(exactly(&mut ends.far, 5).await, "there");
        assert_eq!(exactly(&mut ends.near, 4).await, "back");
        ends.near.shutdown().await.expect("shut down");
        assert_eq!(ends.far.read(&mut [0]).await.expect("the end"), 0);
        // One end is not both: the other way goes on.
        ends.far.write_all(b"late").await.expect("written");
        assert_eq!(exactly(&mut ends.near, 4).await, "late");
        assert!(ends.faults().is_empty());
    });
}

#[test]
fn a_cut_lets_so_many_bytes_through_and_ends_both_sides() {
    with(Fate::Breaks(Break::Cut, Way::There, 4), async |mut ends| {
        let (read, ended) = ends.ten_bytes_there().await;
        assert_eq!((&*read, ended.expect("an orderly end")), ("0123", 4));
        assert_eq!(ends.near.read(&mut [0]).await.expect("an orderly end"), 0);
        assert_eq!(ends.faults(), ["cut"]);
    });
}

#[test]
fn a_cut_can_let_no_byte_through_and_strikes_in_its_own_direction_only() {
    with(Fate::Breaks(Break::Cut, Way::Back, 0), async |mut ends| {
        ends.near.write_all(b"there").await.expect("written");
        assert_eq!(exactly(&mut ends.far, 5).await, "there");
        assert!(ends.faults().is_empty());
        ends.far.write_all(b"back").await.expect("written");
        assert_eq!(ends.near.read(&mut [0]).await.expect("an orderly end"), 0);
        assert_eq!(ends.faults(), ["cut"]);
    });
}

#[test]
fn a_reset_is_seen_as_one_by_both_sides() {
    with(Fate::Breaks(Break::Reset, Way::There, 4), async |mut ends| {
        let (_, ended) = ends.ten_bytes_there().await;
        assert!(is_reset(ended));
        assert!(is_reset(ends.near.read(&mut [0]).await));
        assert_eq!(ends.faults(), ["reset"]);
    });
}

#[test]
fn a_fin_ends_one_way_and_leaves_the_other() {
    with(Fate::Breaks(Break::Fin, Way::There, 4), async |mut ends| {
        let (read, ended) = ends.ten_bytes_there().await;
        assert_eq!((&*read, ended.expect("an orderly end")), ("0123", 4));
        ends.far.write_all(b"back").await.expect("written");
        assert_eq!(exactly(&mut ends.near, 4).await, "back");
        assert_eq!(ends.faults(), ["fin"]);
    });
}

#[test]
fn a_blackhole_keeps_both_sides_waiting() {
    with(Fate::Breaks(Break::Blackhole, Way::There, 4), async |mut ends| {
        ends.near.write_all(b"0123456789").await.expect("written");
        assert_eq!(exactly(&mut ends.far, 4).await, "0123");
        ends.far.write_all(b"back").await.expect("written");
        assert!(silent(&mut ends.far).await && silent(&mut ends.near).await);
        assert_eq!(ends.faults(), ["blackhole"]);
    });
}

#[test]
fn a_half_open_connection_ends_for_the_sender_and_not_for_the_receiver() {
    with(Fate::Breaks(Break::HalfOpen, Way::There, 4), async |mut ends| {
        ends.near.write_all(b"0123456789").await.expect("written");
        assert_eq!(exactly(&mut ends.far, 4).await, "0123");
        assert_eq!(ends.near.read(&mut [0]).await.expect("an orderly end"), 0);
        assert!(silent(&mut ends.far).await);
        assert_eq!(ends.faults(), ["half_open"]);
    });
}

#[test]
fn a_delay_takes_its_time_and_loses_nothing() {
    let time = Duration::from_millis(150);
    with(Fate::Delays(time), async |mut ends| {
        let begun = tokio::time::Instant::now();
        ends.near.write_all(b"0123456789").await.expect("written");
        assert_eq!(exactly(&mut ends.far, 10).await, "0123456789");
        assert!(begun.elapsed() >= time);
        assert_eq!(ends.faults(), ["delay"]);
    });
}

#[test]
fn slices_arrive_in_order_and_complete() {
    with(Fate::Slices, async |mut ends| {
        ends.near.write_all(b"0123456789").await.expect("written");
        assert_eq!(exactly(&mut ends.far, 10).await, "0123456789");
        assert_eq!(ends.faults(), ["slices"]);
    });
}

#[test]
fn a_proxy_that_leads_nowhere_closes_and_one_made_honest_breaks_nothing() {
    let runtime = Runtime::new().expect("a runtime");
    let fate = |_| Fate::Breaks(Break::Cut, Way::There, 0);
    let proxy = Proxy::start(runtime.handle(), fate, Arc::new(|_, _| {})).expect("a proxy");
    runtime.block_on(async {
        let mut nowhere = TcpStream::connect(proxy.address).await.expect("connected");
        assert_eq!(nowhere.read(&mut [0]).await.expect("an orderly end"), 0);
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        proxy.lead_to(Some(listener.local_addr().expect("bound")));
        proxy.be_honest();
        let mut near = TcpStream::connect(proxy.address).await.expect("connected");
        let (mut far, _) = listener.accept().await.expect("accepted");
        near.write_all(b"there").await.expect("written");
        assert_eq!(exactly(&mut far, 5).await, "there");
    });
}

#[test]
fn the_fates_of_a_seed_are_always_the_same_and_hold_every_kind() {
    let fates = |seed| -> Vec<Fate> {
        let fates = Fates { seed, one_in: 3, bytes_max: 500 };
        (0..100).map(|connection| fates.of(connection)).collect()
    };
    assert_eq!(fates(1), fates(1));
    assert_ne!(fates(1), fates(2));
    for kind in Break::ALL {
        assert!(fates(1).iter().any(|fate| matches!(fate, Fate::Breaks(of, ..) if *of == kind)));
    }
    assert!(fates(1).contains(&Fate::Slices) && fates(1).contains(&Fate::Honest));
}
