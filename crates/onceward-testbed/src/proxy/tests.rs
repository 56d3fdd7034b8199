use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    runtime::Runtime,
    time::timeout,
};

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
    let proxy = CutProxy::with_fates(runtime.handle(), move |_| fate, on_fault).expect("a proxy");
    runtime.block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        proxy.lead_to(Some(listener.local_addr().expect("bound")));
        let near = TcpStream::connect(proxy.address()).await.expect("connected");
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
    let proxy = CutProxy::with_fates(runtime.handle(), fate, Arc::new(|_, _| {})).expect("a proxy");
    runtime.block_on(async {
        let mut nowhere = TcpStream::connect(proxy.address()).await.expect("connected");
        assert_eq!(nowhere.read(&mut [0]).await.expect("an orderly end"), 0);
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        proxy.lead_to(Some(listener.local_addr().expect("bound")));
        proxy.be_honest();
        let mut near = TcpStream::connect(proxy.address()).await.expect("connected");
        let (mut far, _) = listener.accept().await.expect("accepted");
        near.write_all(b"there").await.expect("written");
        assert_eq!(exactly(&mut far, 5).await, "there");
    });
}

/// A server that says everything back in capitals, and what it was told.
struct Echo {
    address: SocketAddr,
    told: Arc<Mutex<String>>,
}

impl Echo {
    async fn start() -> Echo {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("bound");
        let told = Arc::<Mutex<String>>::default();
        let ears = Arc::clone(&told);
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let ears = Arc::clone(&ears);
                tokio::spawn(async move {
                    let mut buffer = [0; 100];
                    while let Ok(read @ 1..) = stream.read(&mut buffer).await {
                        let text = String::from_utf8_lossy(&buffer[..read]).into_owned();
                        lock(&ears).push_str(&text);
                        if stream.write_all(text.to_uppercase().as_bytes()).await.is_err() {
                            break;
                        }
                    }
                });
            }
        });
        Echo { address, told }
    }

    fn told(&self) -> String {
        lock(&self.told).clone()
    }
}

/// What comes back within a moment until the connection ends or is silent, and whether it ended.
async fn heard(stream: &mut TcpStream) -> (String, bool) {
    let mut heard = String::new();
    let mut buffer = [0; 100];
    loop {
        match timeout(Duration::from_millis(300), stream.read(&mut buffer)).await {
            Ok(Ok(read @ 1..)) => heard.push_str(&String::from_utf8_lossy(&buffer[..read])),
            Ok(_) => return (heard, true),
            Err(_) => return (heard, false),
        }
    }
}

async fn through(proxy: &CutProxy, text: &str) -> (TcpStream, String, bool) {
    let mut stream = TcpStream::connect(proxy.address()).await.expect("connected");
    stream.write_all(text.as_bytes()).await.expect("written");
    let (heard, ended) = heard(&mut stream).await;
    (stream, heard, ended)
}

async fn says(proxy: &CutProxy, text: &str) -> (String, bool) {
    let (_, heard, ended) = through(proxy, text).await;
    (heard, ended)
}

fn answer(text: &str, ended: bool) -> (String, bool) {
    (text.to_owned(), ended)
}

#[tokio::test]
async fn a_cut_ends_all_connections_of_now_and_none_of_later() {
    let echo = Echo::start().await;
    let proxy = CutProxy::start(echo.address);
    let (mut one, ..) = through(&proxy, "one").await;
    let (mut other, ..) = through(&proxy, "other").await;
    proxy.cut();
    assert_eq!(heard(&mut one).await, answer("", true));
    assert_eq!(heard(&mut other).await, answer("", true));
    assert_eq!(says(&proxy, "later").await, answer("LATER", false));
}

#[tokio::test]
async fn a_mute_proxy_passes_requests_and_no_answers_until_it_cuts() {
    let echo = Echo::start().await;
    let proxy = CutProxy::start(echo.address);
    let (mut old, answered, _) = through(&proxy, "before ").await;
    assert_eq!(answered, "BEFORE ");
    proxy.mute();
    old.write_all(b"old ").await.expect("written");
    assert_eq!(heard(&mut old).await, answer("", false));
    assert_eq!(says(&proxy, "new").await, answer("", false));
    assert_eq!(echo.told(), "before old new");
    proxy.cut();
    assert_eq!(heard(&mut old).await, answer("", true));
    assert_eq!(says(&proxy, "later").await, answer("LATER", false));
}

#[tokio::test]
async fn a_lost_answer_is_one_to_something_that_arrived() {
    let echo = Echo::start().await;
    let proxy = CutProxy::start(echo.address);
    proxy.cut_after(b"commit", b"IT");
    let (mut client, answered, ended) = through(&proxy, "begin ").await;
    assert_eq!((&*answered, ended, proxy.sprung()), ("BEGIN ", false, 0));
    client.write_all(b"commit").await.expect("written");
    assert_eq!(heard(&mut client).await, answer("", true));
    assert_eq!((&*echo.told(), proxy.sprung()), ("begin commit", 1));
    // Once.
    assert_eq!(says(&proxy, " commit").await, answer(" COMMIT", false));
}

#[tokio::test]
async fn a_lost_request_never_arrives() {
    let echo = Echo::start().await;
    let proxy = CutProxy::start(echo.address);
    proxy.cut_before(b"commit");
    let (mut client, answered, _) = through(&proxy, "begin ").await;
    assert_eq!(answered, "BEGIN ");
    client.write_all(b"commit").await.expect("written");
    assert_eq!(heard(&mut client).await, answer("", true));
    assert_eq!((&*echo.told(), proxy.sprung()), ("begin ", 1));
    assert_eq!(says(&proxy, "commit").await, answer("COMMIT", false));
}

#[tokio::test]
async fn an_answer_in_the_place_of_the_server_is_given_once_and_all_else_goes_on() {
    let echo = Echo::start().await;
    let proxy = CutProxy::start(echo.address);
    proxy.answer(b"commit", b"busy");
    let (mut client, answered, _) = through(&proxy, "begin ").await;
    assert_eq!(answered, "BEGIN ");
    for (said, heard_of_it) in [("commit", "busy"), ("commit", "COMMIT")] {
        client.write_all(said.as_bytes()).await.expect("written");
        assert_eq!(heard(&mut client).await, answer(heard_of_it, false));
    }
    assert_eq!((&*echo.told(), proxy.sprung()), ("begin commit", 1));
}

#[tokio::test]
async fn a_pattern_is_found_in_pieces_and_no_cut_comes_before_the_awaited_answer() {
    let echo = Echo::start().await;
    let proxy = CutProxy::start(echo.address);
    proxy.cut_after(b"commit", b"THE END");
    let (mut client, answered, ended) = through(&proxy, "com").await;
    assert_eq!((&*answered, ended), ("COM", false));
    client.write_all(b"mit the").await.expect("written");
    assert_eq!(heard(&mut client).await, answer("", false));
    client.write_all(b" end").await.expect("written");
    assert_eq!(heard(&mut client).await, answer("", true));
    assert_eq!((&*echo.told(), proxy.sprung()), ("commit the end", 1));
}

#[tokio::test]
async fn a_delay_begins_and_ends_at_a_moment() {
    let echo = Echo::start().await;
    let proxy = CutProxy::start(echo.address);
    let mut client = TcpStream::connect(proxy.address()).await.expect("connected");
    let time = Duration::from_millis(200);
    for (delay, at_least) in [(time, 2 * time), (Duration::ZERO, Duration::ZERO)] {
        proxy.delay(delay);
        let begun = tokio::time::Instant::now();
        client.write_all(b"abc").await.expect("written");
        assert_eq!(exactly(&mut client, 3).await, "ABC");
        let taken = begun.elapsed();
        assert!(taken >= at_least && taken < at_least + Duration::from_secs(5), "{taken:?}");
    }
}

#[tokio::test]
async fn a_proxy_refuses_new_connections_keeps_old_ones_and_leads_on() {
    let echo = Echo::start().await;
    let proxy = CutProxy::start(echo.address);
    let (mut old, ..) = through(&proxy, "old").await;
    proxy.lead_to(None);
    let mut refused = TcpStream::connect(proxy.address()).await.expect("connected");
    assert_eq!(heard(&mut refused).await, answer("", true));
    old.write_all(b"still").await.expect("written");
    assert_eq!(heard(&mut old).await, answer("STILL", false));
    proxy.lead_to(Some(echo.address));
    assert_eq!(says(&proxy, "again").await, answer("AGAIN", false));
}

#[tokio::test]
async fn a_dropped_proxy_listens_no_more_and_ends_its_connections() {
    let echo = Echo::start().await;
    let proxy = CutProxy::start(echo.address);
    let clone = proxy.clone();
    let address = proxy.address();
    drop(proxy);
    let (mut client, answered, _) = through(&clone, "a clone").await;
    assert_eq!(answered, "A CLONE");
    drop(clone);
    assert_eq!(heard(&mut client).await, answer("", true));
    assert!(TcpStream::connect(address).await.is_err());
}
