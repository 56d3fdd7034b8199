//! `keys`, `unknown`, `audit`, `stats`.

use std::{io::Write as _, process::ExitCode};

use anyhow::{Context as _, Result, bail, ensure};
use clap::{ArgGroup, Args, Subcommand};
use http::Method;
use http_body_util::BodyExt as _;
use onceward::{Key, Scope, record::RecordId};

use super::{
    Client, Output, Server,
    bulk::{self, Bulk},
    examples,
    outbox::is_number,
    print, print_json,
    table::{plain, table},
};
use crate::admin::api::types::{
    AuditPageView, Changed, Evidence, KeyDetail, KeyPage, KeyRecord, NewReply, Outcome, Probes,
    RedriveRequest, ReleaseRequest, ResolveRequest, StatsView, VoidRequest,
};

#[derive(Debug, Subcommand)]
pub(crate) enum Keys {
    /// Lists records, the latest first.
    #[command(after_help = examples::KEYS_LIST)]
    List(ListArgs),
    /// Shows one record, and what happened to it.
    #[command(after_help = examples::KEYS_SHOW)]
    Show {
        #[command(flatten)]
        target: Target,
        #[command(flatten)]
        server: Server,
    },
    /// Says what had happened behind an unknown record.
    #[command(after_help = examples::KEYS_RESOLVE)]
    Resolve(ResolveArgs),
    /// Says that unknown records did not act: the same requests may run again.
    #[command(after_help = examples::KEYS_RELEASE)]
    Release {
        #[command(flatten)]
        looked_at: LookedAt,
        #[command(flatten)]
        because: Because,
        #[command(flatten)]
        evidence: EvidenceArgs,
        #[command(flatten)]
        bulk: Bulk,
        #[command(flatten)]
        server: Server,
    },
    /// Withdraws the replies of completed records: the next use of their keys runs.
    #[command(after_help = examples::KEYS_VOID)]
    Void {
        #[command(flatten)]
        looked_at: LookedAt,
        #[command(flatten)]
        because: Because,
        #[command(flatten)]
        bulk: Bulk,
        #[command(flatten)]
        server: Server,
    },
    /// Prints records as lines of JSON.
    #[command(after_help = examples::KEYS_EXPORT)]
    Export {
        #[command(flatten)]
        filter: FilterArgs,
        #[command(flatten)]
        server: Server,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum Unknown {
    /// Lists records whose outcome is unknown, the oldest first.
    #[command(after_help = examples::UNKNOWN_LIST)]
    List(ListArgs),
    /// Has the running server ask about unknown records at once.
    #[command(after_help = examples::UNKNOWN_RECONCILE)]
    Reconcile(RedriveArgs),
}

/// What is asked about anew.
#[derive(Debug, Args)]
pub(crate) struct RedriveArgs {
    #[command(flatten)]
    pub(super) looked_at: LookedAt,
    #[command(flatten)]
    pub(super) because: Because,
    #[command(flatten)]
    pub(super) bulk: Bulk,
    #[command(flatten)]
    pub(super) server: Server,
}

impl RedriveArgs {
    /// The number of a message, if it is one that is named and not a record.
    pub(super) fn message(&self) -> Option<String> {
        self.looked_at.target.id.clone().filter(|id| is_number(id))
    }

    pub(super) fn is_about_many(&self) -> Result<()> {
        ensure!(!self.looked_at.is_one()?, "--messages is about many: give --filter and no id");
        Ok(())
    }
}

/// One record.
#[derive(Debug, Args)]
pub(crate) struct Target {
    /// Its id, as `keys list` shows it.
    id: Option<String>,
    /// Its scope, together with --key.
    #[arg(long, requires = "key", conflicts_with = "id")]
    scope: Option<String>,
    /// Its key, together with --scope.
    #[arg(long, requires = "scope", conflicts_with = "id")]
    key: Option<String>,
}

/// A record, as it was looked at.
#[derive(Debug, Args)]
pub(crate) struct LookedAt {
    #[command(flatten)]
    target: Target,
    /// Its fence, as `keys show` shows it. If it has another one by now, nothing happens.
    #[arg(long, value_name = "NUMBER")]
    pub(super) fence: Option<i64>,
}

impl LookedAt {
    /// Whether it is about one record, and not about many.
    fn is_one(&self) -> Result<bool> {
        let one = self.target.id.is_some() || self.target.scope.is_some();
        ensure!(one || self.fence.is_none(), "--fence is that of one record: give its id too");
        Ok(one)
    }

    /// The generation and the fence that a change is bound to: those that were shown to whoever
    /// decides, or those that the record has just now.
    async fn load(&self, client: &Client) -> Result<(u32, i64)> {
        let shown: KeyDetail = client.get(&format!("/keys/{}", self.target.id()?), &[]).await?;
        Ok((shown.record.generation, self.fence.unwrap_or(shown.record.fence)))
    }
}

impl Target {
    fn id(&self) -> Result<String> {
        match (&self.id, &self.scope, &self.key) {
            (Some(id), ..) => {
                ensure!(
                    RecordId::from_handle(id).is_some(),
                    "`{}` is not an id; `keys list` shows ids, or use --scope and --key",
                    plain(id)
                );
                Ok(id.clone())
            }
            (None, Some(scope), Some(key)) => {
                let scope = Scope::new(scope.as_str()).ok().context("this scope cannot be one")?;
                let key = Key::new(key.as_str()).context("--key")?;
                Ok(RecordId { scope, key }.handle())
            }
            _ => bail!("which record? give its id, or --scope and --key"),
        }
    }
}

/// Which records.
#[derive(Debug, Args)]
pub(crate) struct FilterArgs {
    /// A condition: scope, key, key_prefix, state, route, effects, created_from, created_before,
    /// finished_from, finished_before, older_than or dead (=true). Several hold at once.
    #[arg(long, value_name = "NAME=VALUE", value_parser = condition)]
    pub(super) filter: Vec<(String, String)>,
}

pub(super) fn condition(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("a condition is NAME=VALUE")?;
    Ok((name.to_owned(), value.to_owned()))
}

#[derive(Debug, Args)]
pub(crate) struct ListArgs {
    #[command(flatten)]
    pub(super) filter: FilterArgs,
    /// Only the record that this provider calls so: its id, or its name, a space, and its id.
    #[arg(long, value_name = "ID")]
    provider_id: Option<String>,
    /// created_at or expires_at.
    #[arg(long, value_name = "TIME")]
    sort: Option<String>,
    /// ascending or descending.
    #[arg(long, value_name = "ORDER")]
    order: Option<String>,
    /// At most so many.
    #[arg(long, value_name = "NUMBER")]
    pub(super) limit: Option<u32>,
    /// Where the page before ended.
    #[arg(long, value_name = "CURSOR")]
    pub(super) after: Option<String>,
    #[command(flatten)]
    pub(super) server: Server,
}

impl ListArgs {
    /// The same with one more condition, the oldest first unless asked otherwise.
    pub(super) fn oldest_first(mut self, (name, value): (&str, &str)) -> Self {
        self.filter.filter.push((name.to_owned(), value.to_owned()));
        self.order.get_or_insert_with(|| "ascending".to_owned());
        self
    }
}

#[derive(Debug, Args)]
pub(crate) struct AuditArgs {
    /// Only of this kind, such as released or voided.
    #[arg(long)]
    event: Option<String>,
    /// Only of this scope.
    #[arg(long)]
    scope: Option<String>,
    /// From this time on.
    #[arg(long, value_name = "TIME")]
    from: Option<String>,
    /// Before this time.
    #[arg(long, value_name = "TIME")]
    before: Option<String>,
    /// At most so many.
    #[arg(long, value_name = "NUMBER")]
    limit: Option<u32>,
    /// Where the page before ended.
    #[arg(long, value_name = "CURSOR")]
    after: Option<String>,
    #[command(flatten)]
    server: Server,
}

#[derive(Debug, Args)]
pub(crate) struct StatsArgs {
    #[command(flatten)]
    server: Server,
}

/// Why.
#[derive(Debug, Args)]
pub(crate) struct Because {
    /// Why it is done, for whoever reads the audit records.
    #[arg(long, value_name = "TEXT", required_unless_present = "apply")]
    pub(super) reason: Option<String>,
}

/// How it is known.
#[derive(Debug, Args)]
pub(crate) struct EvidenceArgs {
    /// Who or what says so: the provider's ledger, a ticket.
    #[arg(long, value_name = "SOURCE", required_unless_present = "apply")]
    evidence: Option<String>,
    /// When somebody looked and found nothing; twice.
    #[arg(long, value_name = "TIME")]
    probe: Vec<String>,
}

impl EvidenceArgs {
    pub(super) fn evidence(self) -> Result<Evidence> {
        let source = self.evidence.context("how is it known? give --evidence")?;
        let probes = match <[String; 2]>::try_from(self.probe) {
            Ok([first, second]) => Some(Probes { first, second }),
            Err(none) if none.is_empty() => None,
            Err(_) => bail!("--probe is given twice, or not at all"),
        };
        Ok(Evidence { source, probes })
    }
}

#[derive(Debug, Args)]
#[command(group = ArgGroup::new("outcome").required(true))]
pub(crate) struct ResolveArgs {
    #[command(flatten)]
    looked_at: LookedAt,
    /// It acted, and this was its reply.
    #[arg(long, group = "outcome", requires = "status")]
    completed: bool,
    /// It did not act.
    #[arg(long, group = "outcome")]
    not_executed: bool,
    /// The status of the reply.
    #[arg(long, requires = "completed")]
    status: Option<u16>,
    /// The body of the reply.
    #[arg(long, requires = "completed", default_value = "", hide_default_value = true)]
    body: String,
    /// The content type of the reply.
    #[arg(long, requires = "completed", value_name = "TYPE")]
    content_type: Option<String>,
    /// Why it is done, for whoever reads the audit records.
    #[arg(long, value_name = "TEXT")]
    reason: String,
    /// Who or what says so: the provider's ledger, a ticket.
    #[arg(long, value_name = "SOURCE")]
    evidence: String,
    /// When somebody looked and found nothing; twice.
    #[arg(long, value_name = "TIME", requires = "not_executed")]
    probe: Vec<String>,
    #[command(flatten)]
    server: Server,
}

pub(super) async fn run(command: Keys) -> Result<ExitCode> {
    match command {
        Keys::List(args) => list(args).await?,
        Keys::Show { target, server } => show(&target, &server).await?,
        Keys::Resolve(args) => resolve(args).await?,
        Keys::Release { looked_at, because, evidence, bulk, server } => {
            let client = Client::new(&server)?;
            if !looked_at.is_one()? {
                return bulk::release(&client, bulk, because, evidence).await;
            }
            let evidence = evidence.evidence()?;
            let reason = because.reason.context("--reason")?;
            let (generation, fence) = looked_at.load(&client).await?;
            let document = ReleaseRequest { reason, generation, fence, evidence };
            change(&client, &looked_at.target, "release", &document).await?;
        }
        Keys::Void { looked_at, because, bulk, server } => {
            let client = Client::new(&server)?;
            if !looked_at.is_one()? {
                return bulk::void(&client, bulk, because).await;
            }
            let reason = because.reason.context("--reason")?;
            let (generation, fence) = looked_at.load(&client).await?;
            let document = VoidRequest { reason, generation, fence };
            change(&client, &looked_at.target, "void", &document).await?;
        }
        Keys::Export { filter, server } => export(&filter, &server).await?,
    }
    Ok(ExitCode::SUCCESS)
}

pub(super) async fn unknown(command: Unknown) -> Result<ExitCode> {
    match command {
        Unknown::List(args) => {
            list(args.oldest_first(("state", "unknown"))).await?;
            Ok(ExitCode::SUCCESS)
        }
        Unknown::Reconcile(args) => redrive(args, ("state", "unknown")).await,
    }
}

pub(super) async fn redrive(args: RedriveArgs, only: (&str, &str)) -> Result<ExitCode> {
    let RedriveArgs { looked_at, because, bulk, server } = args;
    let client = Client::new(&server)?;
    if !looked_at.is_one()? {
        return bulk::redrive(&client, bulk, because, only).await;
    }
    let reason = because.reason.context("--reason")?;
    let (generation, fence) = looked_at.load(&client).await?;
    let document = RedriveRequest { reason, generation, fence };
    change(&client, &looked_at.target, "redrive", &document).await?;
    Ok(ExitCode::SUCCESS)
}

/// One page of records.
pub(super) async fn page(client: &Client, args: ListArgs) -> Result<KeyPage> {
    let mut parameters = args.filter.filter;
    let limit = args.limit.map(|limit| limit.to_string());
    parameters.extend(given([
        ("provider_id", args.provider_id),
        ("sort", args.sort),
        ("order", args.order),
        ("limit", limit),
        ("after", args.after),
    ]));
    client.get("/keys", &parameters).await
}

async fn list(args: ListArgs) -> Result<()> {
    let client = Client::new(&args.server)?;
    let page = page(&client, args).await?;
    if client.output == Output::Json {
        return print_json(&page);
    }
    let row = |record: &KeyRecord| {
        let status = record.reply_status.map(|status| status.to_string()).unwrap_or_default();
        let endpoint = format!("{} {}", record.method, record.path);
        let cells = [&record.state, &status, &record.created_at, &record.scope, &record.key];
        let cells = cells.into_iter().chain([&endpoint, &record.id]);
        cells.map(|cell| plain(cell)).collect()
    };
    let rows: Vec<Vec<String>> = page.records.iter().map(row).collect();
    let headings = ["state", "status", "created", "scope", "key", "request", "id"];
    print(&table(&headings, &rows));
    if let Some(next) = page.next {
        print(&format!("\nThere is more: --after {next}\n"));
    }
    Ok(())
}

async fn show(target: &Target, server: &Server) -> Result<()> {
    let client = Client::new(server)?;
    let shown: KeyDetail = client.get(&format!("/keys/{}", target.id()?), &[]).await?;
    if client.output == Output::Json {
        return print_json(&shown);
    }
    print_record(&shown.record);
    for it in &shown.provider_ids {
        let line = format!("{} {}", it.provider, it.id);
        print(&format!("{:<12} {}\n", "provider id:", plain(&line)));
    }
    let row = |it: &crate::admin::api::types::Happened| {
        let status = it.reply_status.map(|status| status.to_string()).unwrap_or_default();
        let reason = it.reason.as_deref().map(plain).unwrap_or_default();
        vec![it.at.clone(), it.generation.to_string(), it.event.clone(), status, reason]
    };
    let rows: Vec<Vec<String>> = shown.timeline.iter().map(row).collect();
    print("\n");
    print(&table(&["at", "generation", "event", "status", "reason"], &rows));
    print(&format!("\n{}\n", shown.advice));
    Ok(())
}

async fn resolve(args: ResolveArgs) -> Result<()> {
    let client = Client::new(&args.server)?;
    let evidence = EvidenceArgs { evidence: Some(args.evidence), probe: args.probe };
    let status = args.status;
    let (generation, fence) = args.looked_at.load(&client).await?;
    let document = ResolveRequest {
        outcome: if args.completed { Outcome::Completed } else { Outcome::NotExecuted },
        reply: status.map(|status| NewReply {
            status,
            content_type: args.content_type,
            body: args.body,
        }),
        reason: args.reason,
        generation,
        fence,
        evidence: evidence.evidence()?,
    };
    change(&client, &args.looked_at.target, "resolve", &document).await
}

async fn change(
    client: &Client,
    target: &Target,
    verb: &str,
    document: &impl serde::Serialize,
) -> Result<()> {
    let path = format!("/keys/{}/{verb}", target.id()?);
    let changed: Changed = client.post(&path, document).await?;
    match client.output {
        Output::Json => print_json(&changed)?,
        Output::Table => print_record(&changed.record),
    }
    Ok(())
}

fn print_record(record: &KeyRecord) {
    let number = |number: u32| number.to_string();
    let rows = [
        ("id", record.id.clone()),
        ("scope", record.scope.clone()),
        ("key", record.key.clone()),
        ("state", record.state.clone()),
        ("generation", number(record.generation)),
        ("fence", record.fence.to_string()),
        ("attempts", number(record.attempts)),
        ("request", format!("{} {}", record.method, record.path)),
        ("route", record.route.clone()),
        ("effects", record.effects.clone()),
        ("status", record.reply_status.map(|status| status.to_string()).unwrap_or_default()),
        ("last error", record.last_error.clone().unwrap_or_default()),
        ("created", record.created_at.clone()),
        ("lease until", record.lease_until.clone()),
        ("expires", record.expires_at.clone()),
    ];
    for (name, value) in rows {
        print(&format!("{:<12} {}\n", format!("{name}:"), plain(&value)));
    }
}

async fn export(filter: &FilterArgs, server: &Server) -> Result<()> {
    let client = Client::new(server)?;
    let answer = client.send(Method::GET, "/export", &filter.filter, None).await?;
    let mut body = answer.into_body();
    let mut stdout = std::io::stdout().lock();
    while let Some(frame) = body.frame().await {
        let frame = frame.context("the export was cut off; what was printed is not all")?;
        if let Ok(lines) = frame.into_data() {
            stdout.write_all(&lines).context("the export cannot be written")?;
        }
    }
    stdout.flush().context("the export cannot be written")
}

pub(super) async fn audit(args: AuditArgs) -> Result<ExitCode> {
    let client = Client::new(&args.server)?;
    let limit = args.limit.map(|limit| limit.to_string());
    let parameters = given([
        ("event", args.event),
        ("scope", args.scope),
        ("from", args.from),
        ("before", args.before),
        ("limit", limit),
        ("after", args.after),
    ]);
    let page: AuditPageView = client.get("/audit", &parameters).await?;
    if client.output == Output::Json {
        print_json(&page)?;
        return Ok(ExitCode::SUCCESS);
    }
    let rows = page.records.iter().map(|it| {
        [&it.at, &it.event, &it.scope, &it.key, &it.reason].map(|cell| plain(cell)).to_vec()
    });
    let rows: Vec<Vec<String>> = rows.collect();
    print(&table(&["at", "event", "scope", "key", "reason"], &rows));
    if let Some(next) = page.next {
        print(&format!("\nThere is more: --after {next}\n"));
    }
    Ok(ExitCode::SUCCESS)
}

pub(super) async fn stats(args: StatsArgs) -> Result<ExitCode> {
    let client = Client::new(&args.server)?;
    let stats: StatsView = client.get("/stats", &[]).await?;
    if client.output == Output::Json {
        print_json(&stats)?;
        return Ok(ExitCode::SUCCESS);
    }
    let rows = stats.states.iter().map(|count| {
        let about = if count.estimated { "about " } else { "" };
        vec![count.state.clone(), format!("{about}{}", count.records)]
    });
    print(&table(&["state", "records"], &rows.collect::<Vec<_>>()));
    for (name, at) in [
        ("unknown", stats.oldest_unknown),
        ("in_progress", stats.oldest_in_progress),
        ("pending", stats.oldest_pending),
    ] {
        if let Some(at) = at {
            print(&format!("\nThe oldest {name} record was created at {at}.\n"));
        }
    }
    Ok(ExitCode::SUCCESS)
}

pub(super) fn given<const N: usize>(
    parameters: [(&str, Option<String>); N],
) -> Vec<(String, String)> {
    let given = parameters.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?)));
    given.collect()
}
