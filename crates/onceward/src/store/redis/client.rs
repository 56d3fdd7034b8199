//! Calls find their server: by bucket, in one server or in a Cluster, and again when it is another one.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, PoisonError, RwLock,
        atomic::{AtomicU64, Ordering},
    },
};

use redis::{Cmd, ConnectionAddr, ConnectionInfo, RedisError, Value};
use tracing::info;

use super::{
    address::Layout,
    error::{Remedy, TRIES_MAX, answer_lost, pause, remedy, store_error, unavailable, unreadable},
    link::{Call, Failed, Link, Open},
    script::Script,
    tally::{Name, Tally},
    value::{Parts, bytes},
};
use crate::{
    clock::Clock,
    store::{StoreError, StoreErrorKind},
};

/// All connections of a store.
pub(super) struct Client {
    pub(super) layout: Layout,
    pub(super) cluster: bool,
    /// Only in tests. Otherwise the server's.
    clock: Option<Arc<dyn Clock>>,
    /// How to come to a server, but for its address.
    info: ConnectionInfo,
    links: Mutex<HashMap<String, Arc<Link>>>,
    /// The server of each bucket.
    route: RwLock<Route>,
    /// Held by the one that asks where the buckets are.
    routing: tokio::sync::Mutex<()>,
    epoch: Arc<AtomicU64>,
    /// How this process is called where its writes are counted.
    writer: String,
    /// What was acknowledged to it: in a Cluster of each bucket, else of all together.
    tallies: Vec<Tally>,
}

/// What a server is asked.
#[derive(Clone, Copy)]
enum What<'a> {
    Call(&'a Call),
    /// A call that is counted if it writes.
    Counted(&'a Call),
    Command(&'a Cmd),
}

#[derive(Default)]
struct Route {
    servers: Vec<Arc<Link>>,
    number: u64,
}

impl Client {
    pub(super) fn new(
        info: ConnectionInfo,
        cluster: bool,
        layout: Layout,
        clock: Option<Arc<dyn Clock>>,
    ) -> Result<Self, RedisError> {
        let epoch = Arc::new(AtomicU64::new(0));
        let seed = Arc::new(Link::new(info.clone(), Arc::clone(&epoch))?);
        let groups = if cluster { usize::from(layout.buckets) } else { 1 };
        Ok(Client {
            route: RwLock::new(Route {
                servers: vec![Arc::clone(&seed); usize::from(layout.buckets)],
                number: 0,
            }),
            links: Mutex::new(HashMap::from([(seed.address.clone(), seed)])),
            routing: tokio::sync::Mutex::default(),
            writer: format!("{:016x}", rand::random::<u64>()),
            tallies: (0..groups).map(|_| Tally::default()).collect(),
            layout,
            cluster,
            clock,
            info,
            epoch,
        })
    }

    /// What time it is, for a script: nothing, but in tests.
    pub(super) fn now(&self) -> Vec<u8> {
        let now = self.clock.as_ref().map(|clock| clock.now().as_micros().to_string());
        now.unwrap_or_default().into_bytes()
    }

    pub(super) fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::SeqCst)
    }

    /// The store may have become another one.
    fn next_epoch(&self) -> u64 {
        self.epoch.fetch_add(1, Ordering::SeqCst) + 1
    }

    /// The bucket in which the writes to this one are counted: one server loses all or nothing of what
    /// came before.
    pub(super) fn counted_in(&self, bucket: u16) -> u16 {
        if self.cluster { bucket } else { self.home() }
    }

    /// The bucket of what is about the whole store.
    pub(super) fn home(&self) -> u16 {
        self.layout.bucket(b"1:**")
    }

    pub(super) fn writers(&self, bucket: u16) -> Vec<u8> {
        self.layout.key(self.counted_in(bucket), "writers", b"")
    }

    /// What was acknowledged of writes to this bucket.
    pub(super) fn tally(&self, bucket: u16) -> &Tally {
        let group = if self.cluster { usize::from(bucket) } else { 0 };
        self.tallies.get(group).unwrap_or_else(|| unreachable!("a tally for each bucket"))
    }

    /// Names and counts of writes to this bucket, for a script.
    pub(super) fn told(&self, told: &[(Name, u64)]) -> Vec<Vec<u8>> {
        let texts = told.iter().map(|(name, acked)| [name.text(&self.writer), acked.to_string()]);
        texts.flatten().map(String::into_bytes).collect()
    }

    /// The server has lost what was counted under this name: it is as if it were another one from now
    /// on, and what it says is not believed before a beat has asked it.
    pub(super) fn has_lost(&self, bucket: u16, name: Name) {
        let tally = self.tally(bucket);
        if tally.is_current(name) {
            tally.rename(self.next_epoch());
        }
    }

    /// The server has evicted keys since this name was put into a call: what it says is not believed before
    /// a beat either.
    pub(super) fn has_evicted(&self, bucket: u16, name: Name, evicted: u64) {
        self.server(bucket).has_evicted(name.connection(), evicted);
    }

    pub(super) fn server(&self, bucket: u16) -> Arc<Link> {
        let route = self.route.read().unwrap_or_else(PoisonError::into_inner);
        let server = route.servers.get(usize::from(bucket));
        Arc::clone(server.unwrap_or_else(|| unreachable!("a server for each bucket")))
    }

    fn route_number(&self) -> u64 {
        self.route.read().unwrap_or_else(PoisonError::into_inner).number
    }

    pub(super) async fn call(
        &self,
        bucket: u16,
        script: Script,
        keys: Vec<Vec<u8>>,
        args: Vec<Vec<u8>>,
    ) -> Result<Parts, StoreError> {
        let call = Call { script, keys, args };
        self.repeat(bucket, What::Call(&call)).await.and_then(|(_, answer)| Parts::of(answer))
    }

    /// A call that begins with the name under which it is counted, with what was acknowledged under that
    /// name, and with what the server was known to have evicted; and which name that was.
    pub(super) async fn call_counted(
        &self,
        bucket: u16,
        call: &Call,
    ) -> Result<(Name, Parts), StoreError> {
        let (name, answer) = self.repeat(bucket, What::Counted(call)).await?;
        Ok((name, Parts::of(answer)?))
    }

    /// Runs a script that connections do not load when they are made. By its digest: a user that may run our
    /// scripts need not be allowed to run others.
    pub(super) async fn run(
        &self,
        bucket: u16,
        source: &str,
        keys: &[Vec<u8>],
        args: &[Vec<u8>],
    ) -> Result<Value, StoreError> {
        let mut load = redis::cmd("SCRIPT");
        load.arg("LOAD").arg(source);
        let digest = bytes(self.command(bucket, &load).await?)?;
        let mut run = redis::cmd("EVALSHA");
        run.arg(&digest[..]).arg(keys.len()).arg(keys).arg(args);
        self.command(bucket, &run).await
    }

    pub(super) async fn command(&self, bucket: u16, command: &Cmd) -> Result<Value, StoreError> {
        self.repeat(bucket, What::Command(command)).await.map(|(_, answer)| answer)
    }

    /// Every call may be made again: it says by attempt or stamp whether it was carried out before.
    async fn repeat(&self, bucket: u16, what: What<'_>) -> Result<(Name, Value), StoreError> {
        let mut name = Name::default();
        let mut may_have_happened = false;
        let mut last = unavailable("there is no server");
        for tries in 0..TRIES_MAX {
            let number = self.route_number();
            let link = self.server(bucket);
            let answer = match what {
                What::Call(call) => link.call(call, |_| Vec::new()).await,
                What::Counted(call) => {
                    // Said as late as can be: it belongs to the connection that it is sent over.
                    let sign = |open: &Open| {
                        let (current, acked) = self.tally(bucket).name(open.number);
                        name = current;
                        let mut first = self.told(&[(current, acked)]);
                        let evicted = open.evicted.as_ref().map(|it| it.load(Ordering::SeqCst));
                        first.push(evicted.map_or_else(Vec::new, |it| it.to_string().into_bytes()));
                        first
                    };
                    link.call(call, sign).await
                }
                What::Command(command) => link.command(command).await,
            };
            let error = match answer {
                Ok(answer) => return Ok((name, answer)),
                Err(Failed::NotSent(error)) => {
                    let refused = "there is no connection to the server";
                    last = unavailable(refused).with_source(error.to_string());
                    self.route_again(number).await;
                    pause(tries).await;
                    continue;
                }
                Err(Failed::Sent(error)) => error,
            };
            last = store_error(&error);
            may_have_happened |= last.kind() == StoreErrorKind::Ambiguous;
            match remedy(&error) {
                Remedy::Load => match link.load_again().await {
                    Ok(()) => {}
                    Err(Failed::NotSent(error) | Failed::Sent(error)) => last = store_error(&error),
                },
                Remedy::Reconnect => self.route_again(number).await,
                Remedy::Elsewhere => {
                    if !self.cluster {
                        // Its name may lead to another server by now.
                        link.close();
                    }
                    self.route_again(number).await;
                    if tries > 0 {
                        pause(tries).await;
                    }
                }
                Remedy::Again => {
                    self.route_again(number).await;
                    pause(tries).await;
                }
                Remedy::Refused => break,
            }
        }
        Err(if may_have_happened { answer_lost(last) } else { last })
    }

    /// The link to a node of the Cluster.
    fn link(&self, host: &str, port: u16) -> Result<Arc<Link>, RedisError> {
        let address = match self.info.addr() {
            ConnectionAddr::TcpTls { insecure, tls_params, .. } => ConnectionAddr::TcpTls {
                host: host.to_owned(),
                port,
                insecure: *insecure,
                tls_params: tls_params.clone(),
            },
            _ => ConnectionAddr::Tcp(host.to_owned(), port),
        };
        let mut links = self.links.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(link) = links.get(&address.to_string()) {
            return Ok(Arc::clone(link));
        }
        let info = self.info.clone().set_addr(address);
        let link = Arc::new(Link::new(info, Arc::clone(&self.epoch))?);
        links.insert(link.address.clone(), Arc::clone(&link));
        Ok(link)
    }

    /// Asks where the buckets are, unless somebody has since this was the number of the route. A node
    /// that does not answer is passed over.
    async fn route_again(&self, number: u64) {
        if !self.cluster {
            return;
        }
        let _one = self.routing.lock().await;
        if self.route_number() != number {
            return;
        }
        let links: Vec<Arc<Link>> = {
            let links = self.links.lock().unwrap_or_else(PoisonError::into_inner);
            links.values().cloned().collect()
        };
        for link in links {
            if self.route_by(&link).await.is_ok() {
                return;
            }
        }
    }

    /// Asks this node where the buckets are.
    pub(super) async fn route_by(&self, link: &Link) -> Result<(), StoreError> {
        let mut slots = redis::cmd("CLUSTER");
        slots.arg("SLOTS");
        let answer = match link.command(&slots).await {
            Ok(answer) => answer,
            Err(Failed::NotSent(error) | Failed::Sent(error)) => return Err(store_error(&error)),
        };
        let mut servers: Vec<Option<Arc<Link>>> = vec![None; usize::from(self.layout.buckets)];
        for range in Parts::of(answer)? {
            let mut range = Parts::of(range)?;
            let (first, last) = (range.natural()?, range.natural()?);
            let mut master = range.parts()?;
            let (host, port) = (master.text()?, master.natural()?);
            let port = u16::try_from(port).map_err(|_| unreadable())?;
            // A node that does not know its own address is the one that was asked.
            let host = if host.is_empty() { host_of(&link.address) } else { host };
            let master = self.link(&host, port).map_err(|error| store_error(&error))?;
            for (bucket, server) in (0..).zip(&mut servers) {
                let slot = u64::from(self.layout.slot(bucket));
                if (first..=last).contains(&slot) {
                    *server = Some(Arc::clone(&master));
                }
            }
        }
        let servers: Option<Vec<_>> = servers.into_iter().collect();
        let servers = servers.ok_or_else(|| unavailable("the Cluster does not serve all slots"))?;
        let mut route = self.route.write().unwrap_or_else(PoisonError::into_inner);
        let places = (0..).zip(route.servers.iter().zip(&servers));
        let moved = places.filter(|(_, (one, other))| one.address != other.address);
        let moved: Vec<u16> = moved.map(|(bucket, _)| bucket).collect();
        if !moved.is_empty() {
            // Before anything is asked there: what was acknowledged elsewhere may not be there.
            let epoch = self.next_epoch();
            for bucket in moved {
                self.tally(bucket).rename(epoch);
            }
            info!("buckets of the Redis Cluster are at other nodes");
        }
        *route = Route { servers, number: route.number + 1 };
        Ok(())
    }
}

fn host_of(address: &str) -> String {
    address.rsplit_once(':').map_or(address, |(host, _)| host).to_owned()
}
