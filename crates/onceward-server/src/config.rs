//! What the program is to do: the TOML file and the flags, made one, and checked. Whatever would
//! break a promise is refused here, before anything is opened.

use std::{
    fmt,
    net::{IpAddr, SocketAddr},
    path::PathBuf,
    str::FromStr,
    sync::Arc,
    time::Duration,
};

use anyhow::{Context as _, Result, bail, ensure};
use http::Uri;
use onceward::{Canary, Effects, KeyRules, Profile, ScopeRule};

use crate::{cli::ServeArgs, gateway::Cors};

mod admin; // [admin]
mod cidr; // networks
pub(crate) mod duration; // 60s
mod dynamodb; // dynamodb://TABLE
mod file; // the TOML file as it is written
mod privacy; // [privacy]
mod probe; // how unknown outcomes are asked about
mod policy; // what a section says about requests, made a policy
mod quota; // [quota]
mod route; // [[route]]: which rules hold for a request
mod scope; // [scope]
mod secret; // ${env:NAME}
mod sink; // [[sink]]
mod suggest; // did you mean
mod webhook; // [[webhook]]
mod transport; // [tls], [upstream], [limits]
mod workers; // [workers]

pub(crate) use admin::AdminSettings;
pub(crate) use cidr::Cidr;
pub(crate) use dynamodb::DynamoUrl;
pub(crate) use file::File;
pub(crate) use policy::ON_5XX;
pub(crate) use privacy::Privacy;
#[cfg(test)]
pub(crate) use probe::Template;
pub(crate) use probe::{Condition, ProbeSettings, ReplyStatus, is_private};
pub(crate) use route::{KeyUse, Route, RouteTable, Treatment};
pub(crate) use scope::TokenRules;
use secret::Text;
pub(crate) use sink::SinkSettings;
pub(crate) use suggest::hint;
pub(crate) use transport::{KeyPair, Limits, UpstreamSettings};
pub(crate) use webhook::{About, WebhookSettings};
pub(crate) use workers::{Role, Workers};

/// All settings of a gateway.
#[derive(Clone, Debug)]
pub(crate) struct Config {
    pub(crate) upstream: Uri,
    pub(crate) listen: SocketAddr,
    pub(crate) admin: SocketAddr,
    pub(crate) admin_settings: AdminSettings,
    pub(crate) store: StoreUrl,
    /// It is known that the store may lose what it has acknowledged.
    pub(crate) best_effort: bool,
    /// The URL of what answers replays in front of the store.
    pub(crate) cache: Option<CacheUrl>,
    pub(crate) canary: CanarySettings,
    pub(crate) scope: ScopeRule,
    pub(crate) tokens: TokenRules,
    pub(crate) proxies: TrustedProxies,
    pub(crate) cors: Cors,
    pub(crate) key_rules: KeyRules,
    pub(crate) routes: RouteTable,
    /// How long upstream may take on the route that gives it the least time.
    pub(crate) max_execution: Duration,
    pub(crate) problem_base: Option<Box<str>>,
    pub(crate) accept_identity_change: bool,
    /// With it, clients speak TLS.
    pub(crate) tls: Option<KeyPair>,
    pub(crate) to_upstream: UpstreamSettings,
    pub(crate) limits: Limits,
    /// What one scope may ask for.
    pub(crate) quota: onceward::Limits,
    /// What stores may see.
    pub(crate) privacy: Privacy,
    /// What is done though no client comes.
    pub(crate) workers: Workers,
    /// Providers that tell by themselves what became of operations.
    pub(crate) webhooks: Vec<WebhookSettings>,
    /// Where the messages of the outbox are delivered.
    pub(crate) sinks: Vec<SinkSettings>,
}

/// How it is found out that the store has lost data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CanarySettings {
    /// What remembers across restarts.
    pub(crate) file: Option<PathBuf>,
    /// How long keys are refused.
    pub(crate) limit: Duration,
}

/// Where records are kept.
#[derive(Clone, PartialEq, Eq)]
pub(crate) enum StoreUrl {
    /// In this process only.
    Memory,
    /// In one file.
    File(PathBuf),
    /// In a PostgreSQL database.
    Postgres(String),
    /// In a MySQL or MariaDB database.
    MySql(String),
    /// In a Redis or Valkey server, or a Cluster of them.
    Redis(String),
    /// In a table of DynamoDB.
    Dynamo(DynamoUrl),
}

impl fmt::Debug for StoreUrl {
    /// Without what may hold a password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StoreUrl::Memory => f.write_str("memory:"),
            StoreUrl::File(path) => write!(f, "file:{}", path.display()),
            StoreUrl::Postgres(_) => f.write_str("postgres://"),
            StoreUrl::MySql(_) => f.write_str("mysql://"),
            StoreUrl::Redis(_) => f.write_str("redis://"),
            StoreUrl::Dynamo(url) => write!(f, "{url}"),
        }
    }
}

/// Where replies are kept in front of the store.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct CacheUrl(pub(crate) String);

impl fmt::Debug for CacheUrl {
    /// Without what may hold a password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("redis://")
    }
}

/// Which peers may say who a caller is.
#[derive(Clone, Debug, Default)]
pub(crate) struct TrustedProxies(Arc<[Cidr]>);

impl TrustedProxies {
    /// Without a list, only this machine itself is trusted.
    pub(crate) fn contain(&self, peer: IpAddr) -> bool {
        match &*self.0 {
            [] => peer.to_canonical().is_loopback(),
            networks => networks.iter().any(|network| network.contains(peer)),
        }
    }

    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The list as it was given.
    pub(crate) fn networks(&self) -> impl Iterator<Item = &Cidr> {
        self.0.iter()
    }
}

impl Config {
    /// Reads the file, if there is one, and lays the flags over it.
    pub(crate) fn load(args: ServeArgs) -> Result<Config> {
        let file = match &args.config {
            Some(path) => file::read(path)?,
            None => File::default(),
        };
        Self::resolve(args, file)
    }

    fn resolve(args: ServeArgs, file: File) -> Result<Config> {
        let listen = match args.listen {
            Some(address) => address,
            None => given("gateway.listen", &file.gateway.listen)?.unwrap_or(LISTEN),
        };
        let admin = match args.admin {
            Some(address) => address,
            None => given("gateway.admin", &file.gateway.admin)?.unwrap_or(ADMIN),
        };
        let profile = profile(args.profile.as_deref(), file.defaults.profile.as_ref())?;
        let proxies = trusted_proxies(&file.scope.trusted_proxies)?;
        let store = store_url(args.store.as_deref(), file.store.url.as_ref())?;
        let routes = RouteTable::read(profile, &file, &store)?;
        let max_execution = routes.all().map(|route| route.policy.rules().max_execution).min();
        let upstream = upstream(args.upstream.as_deref(), file.gateway.upstream.as_ref())?;
        let config = Config {
            tls: transport::tls(&file.tls)?,
            to_upstream: transport::upstream(&file.upstream, &upstream)?,
            limits: transport::limits(&file.limits)?,
            quota: quota::quota(&file.quota)?,
            workers: workers::workers(&args, &file.workers)?,
            privacy: privacy::resolve(&file.privacy, &routes, &store)?,
            webhooks: webhook::resolve(&file.webhooks, &routes)?,
            sinks: sink::resolve(&file.sinks)?,
            upstream,
            listen,
            admin,
            admin_settings: admin::resolve(&file.admin)?,
            store,
            best_effort: best_effort(&file.store)?,
            cache: cache(&file.store)?,
            canary: canary(&file.store)?,
            scope: scope::resolve(args.scope.as_deref(), &file.scope, &proxies, listen)?,
            tokens: TokenRules::of(&file.scope),
            proxies,
            cors: cors(&file.gateway)?,
            key_rules: key_rules(profile, &file.key)?,
            routes,
            max_execution: max_execution.unwrap_or_default(),
            problem_base: problem_base(file.defaults.problem_base.as_ref())?,
            accept_identity_change: args.accept_identity_change,
        };
        config.check()?;
        Ok(config)
    }

    fn check(&self) -> Result<()> {
        ensure!(
            self.to_upstream.http2 != Some(true) || !self.routes.all().any(|route| route.upgrade),
            "upgrade = true needs HTTP/1.1 to upstream; leave upstream.http2 out"
        );
        ensure!(
            self.store != StoreUrl::Memory || self.listen.ip().is_loopback(),
            "the store memory: forgets everything when the process ends, so that it only serves a \
             loopback address; use --store file:PATH, or listen on 127.0.0.1"
        );
        self.check_durability()?;
        ensure!(
            self.cache.is_none() || !matches!(self.store, StoreUrl::Memory | StoreUrl::Redis(_)),
            "store.cache is for a store that is slower than the cache; {:?} is not",
            self.store
        );
        let shows_keys =
            |route: &&Arc<Route>| route.probe.as_ref().is_some_and(|probe| probe.url.uses("key"));
        if let (Some(route), Some(_)) =
            (self.routes.all().find(shows_keys), &self.privacy.lookup_key)
        {
            bail!(
                "the probe of `{}` asks by {{key}}, but privacy.hash_keys hides keys from the store; \
                 ask by {{operation}}, which upstream was told as Onceward-Operation",
                route.name()
            );
        }
        ensure!(
            !matches!(self.store, StoreUrl::Memory | StoreUrl::Redis(_) | StoreUrl::Dynamo(_))
                || self.sinks.is_empty(),
            "the store {:?} has no outbox, so that there is nothing to deliver to a [[sink]]; use \
             another store",
            self.store
        );
        ensure!(
            self.store != StoreUrl::Memory || self.workers.role == Role::All,
            "the store memory: is this process's own, so that it serves and works for itself; use \
             another store with --only worker and --no-workers"
        );
        ensure!(
            self.admin.ip().is_loopback() || self.admin_settings.has_token(),
            "the admin address {} can be reached from other machines; set ONCEWARD_ADMIN_TOKEN or \
             admin.tokens, or use a loopback address such as 127.0.0.1:8081",
            self.admin
        );
        Ok(())
    }
}

impl Config {
    /// Work that must not be done twice belongs into a store that does not forget.
    fn check_durability(&self) -> Result<()> {
        if !matches!(self.store, StoreUrl::Redis(_)) || self.best_effort {
            return Ok(());
        }
        let is_external = |route: &&Arc<Route>| {
            let effects = route.policy.rules().effects;
            matches!(route.key, KeyUse::Required | KeyUse::Optional)
                && matches!(effects, Effects::External | Effects::Undeclared)
        };
        if let Some(route) = self.routes.all().find(is_external) {
            bail!(
                "a Redis store can lose what it has acknowledged, and `{}` may do something outside that \
                 would then be done twice; use another store, or say that this is understood: \
                 durability = \"best-effort\" in [store]",
                route.name()
            );
        }
        Ok(())
    }
}

const LISTEN: SocketAddr = loopback(8080);
const ADMIN: SocketAddr = loopback(8081);

/// An address that only this machine reaches.
pub(crate) const fn loopback(port: u16) -> SocketAddr {
    SocketAddr::new(IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), port)
}

/// A value of the file, parsed; the error names its key.
fn given<T: FromStr>(key: &str, text: &Option<Text>) -> Result<Option<T>>
where
    T::Err: std::fmt::Display,
{
    let Some(text) = text else { return Ok(None) };
    match text.as_str().parse() {
        Ok(value) => Ok(Some(value)),
        Err(error) => bail!("{key}: `{}`: {error}", text.as_str()),
    }
}

/// One of a few words, by a table of what they mean.
fn one_of<T: Copy>(key: &str, text: &str, known: &[(&str, T)]) -> Result<T> {
    match known.iter().find(|(name, _)| *name == text) {
        Some((_, value)) => Ok(*value),
        None => {
            let names: Vec<&str> = known.iter().map(|(name, _)| *name).collect();
            bail!("{key}: `{text}` is not known{}", suggest::hint(text, &names))
        }
    }
}

fn profile(flag: Option<&str>, file: Option<&Text>) -> Result<Profile> {
    let known = Profile::ALL.map(|profile| (profile.name(), profile));
    match (flag, file) {
        (Some(name), _) => one_of("--profile", name, &known),
        (None, Some(name)) => one_of("defaults.profile", name.as_str(), &known),
        (None, None) => Ok(Profile::Ietf),
    }
}

fn upstream(flag: Option<&str>, file: Option<&Text>) -> Result<Uri> {
    let url = flag.or(file.map(Text::as_str)).context(
        "no upstream is given; use --upstream http://HOST:PORT, or gateway.upstream in the file",
    )?;
    let wrong = || format!("the upstream `{url}` is not a URL such as http://127.0.0.1:3000");
    let uri: Uri = url.parse().with_context(wrong)?;
    match uri.scheme_str() {
        Some("http" | "https") => {}
        _ => bail!(wrong()),
    }
    let plain = uri.query().is_none() && !url.contains(['@', '#']);
    ensure!(plain && uri.host().is_some_and(|host| !host.is_empty()), wrong());
    Ok(uri)
}

/// Where a store is: by a flag, else by the file, else in a file of this folder.
pub(crate) fn store_url(flag: Option<&str>, file: Option<&Text>) -> Result<StoreUrl> {
    let url = flag.or(file.map(Text::as_str)).unwrap_or("file:./onceward.db");
    match url.split_once(':') {
        Some(("memory", "")) => Ok(StoreUrl::Memory),
        Some(("postgres" | "postgresql", rest)) if rest.starts_with("//") => {
            Ok(StoreUrl::Postgres(url.to_owned()))
        }
        Some(("mysql" | "mariadb", rest)) if rest.starts_with("//") => {
            Ok(StoreUrl::MySql(url.to_owned()))
        }
        Some(("file", path)) if !path.is_empty() => {
            Ok(StoreUrl::File(path.strip_prefix("//").unwrap_or(path).into()))
        }
        Some(("redis" | "rediss" | "redis+cluster" | "rediss+cluster", rest))
            if rest.starts_with("//") =>
        {
            Ok(StoreUrl::Redis(url.to_owned()))
        }
        Some(("dynamodb", rest)) if rest.starts_with("//") => {
            Ok(StoreUrl::Dynamo(DynamoUrl::parse(rest.trim_start_matches('/'))?))
        }
        // The text is not repeated: store addresses hold passwords.
        _ => bail!(
            "the store is neither postgres://, mysql://, dynamodb://TABLE, redis://, file:PATH nor \
             memory:"
        ),
    }
}

fn best_effort(file: &file::Store) -> Result<bool> {
    let known = [("durable", false), ("best-effort", true)];
    let durability = file.durability.as_ref();
    let declared =
        durability.map(|text| one_of("store.durability", text.as_str(), &known)).transpose();
    Ok(declared?.unwrap_or(false))
}

fn cache(file: &file::Store) -> Result<Option<CacheUrl>> {
    let Some(url) = &file.cache else { return Ok(None) };
    match store_url(Some(url.as_str()), None) {
        Ok(StoreUrl::Redis(url)) => Ok(Some(CacheUrl(url))),
        _ => bail!("store.cache is not redis://, rediss://, redis+cluster:// or rediss+cluster://"),
    }
}

fn canary(file: &file::Store) -> Result<CanarySettings> {
    let limit = match &file.canary_limit {
        Some(text) => duration::parse(text.as_str()).context("store.canary_limit")?,
        None => Canary::LIMIT,
    };
    ensure!(limit >= Duration::from_secs(3600), "store.canary_limit must be at least 1h");
    let file = file.canary_file.as_ref().map(|path| path.as_str().into());
    Ok(CanarySettings { file, limit })
}

fn key_rules(profile: Profile, file: &file::Key) -> Result<KeyRules> {
    use onceward::key::{Emails, Syntax};
    let defaults = KeyRules::default();
    let len_min = match profile {
        Profile::Ietf => defaults.len_min,
        // Clients of this flavour send whatever they like.
        Profile::Stripe => 1,
    };
    let syntax = [("lenient", Syntax::Lenient), ("strict", Syntax::Strict)];
    let emails = [("count", Emails::Count), ("reject", Emails::Reject)];
    let rules = KeyRules {
        len_min: file.min_len.unwrap_or(len_min),
        len_max: file.max_len.unwrap_or(defaults.len_max),
        syntax: match &file.syntax {
            Some(text) => one_of("key.syntax", text.as_str(), &syntax)?,
            None => defaults.syntax,
        },
        emails: match &file.emails {
            Some(text) => one_of("key.emails", text.as_str(), &emails)?,
            None => defaults.emails,
        },
    };
    ensure!(rules.len_min >= 1, "key.min_len must be at least 1");
    ensure!(
        rules.len_max <= KeyRules::LEN_MAX,
        "key.max_len must be at most {}, which is what stores can hold",
        KeyRules::LEN_MAX
    );
    ensure!(
        rules.len_min <= rules.len_max,
        "key.min_len ({}) is more than key.max_len ({})",
        rules.len_min,
        rules.len_max
    );
    Ok(rules)
}

fn trusted_proxies(file: &[Text]) -> Result<TrustedProxies> {
    let networks = file.iter().map(|text| text.as_str().parse());
    let networks: Result<Vec<Cidr>> = networks.collect();
    Ok(TrustedProxies(networks.context("scope.trusted_proxies")?.into()))
}

fn cors(file: &file::Gateway) -> Result<Cors> {
    let mut origins = Vec::new();
    for text in file.cors_origins.iter().flatten() {
        let origin = text.as_str();
        let uri = origin.parse::<Uri>().ok().filter(|uri| uri.host().is_some());
        let exact = uri.is_some_and(|uri| matches!(uri.scheme_str(), Some("http" | "https")))
            && origin.matches('/').count() == 2;
        ensure!(
            exact,
            "gateway.cors_origins: `{origin}` is not an origin such as https://shop.example, without \
             a path"
        );
        origins.push(origin.into());
    }
    let credentials = file.cors_credentials.unwrap_or(false);
    ensure!(
        !credentials || !origins.is_empty(),
        "gateway.cors_credentials has a meaning only with cors_origins"
    );
    Ok(Cors { origins, credentials })
}

fn problem_base(file: Option<&Text>) -> Result<Option<Box<str>>> {
    let Some(base) = file.map(Text::as_str) else { return Ok(None) };
    ensure!(
        base.parse::<Uri>().is_ok_and(|uri| uri.scheme().is_some()),
        "defaults.problem_base: `{base}` is not a URL such as https://example.com/errors/"
    );
    Ok(Some(base.into()))
}

#[cfg(test)]
mod tests;
