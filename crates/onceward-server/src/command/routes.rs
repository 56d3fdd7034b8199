//! `routes audit`: every endpoint that changes something and is not protected.

use std::{path::PathBuf, process::ExitCode};

use anyhow::{Context as _, Result, ensure};
use clap::Args;
use http::Method;
use serde::Serialize;
use serde_json::Value;

use super::{
    Client, Output, Server, print, print_json,
    table::{plain, table},
};
use crate::{
    admin::api::types::{Observed, ShadowView, TrafficView},
    cli::ServeArgs,
    config::{Config, KeyUse, RouteTable, Treatment},
    traffic::changes_things,
};

/// What is told when something is not protected.
const UNPROTECTED: u8 = 2;

#[derive(Debug, Args)]
pub(crate) struct AuditArgs {
    /// The OpenAPI document of the service, in JSON or YAML.
    #[arg(long, value_name = "FILE")]
    openapi: Option<PathBuf>,

    /// The config file of the gateway. Without one, its defaults.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,

    /// Also asks the running server what it passed on without a key.
    #[arg(long)]
    traffic: bool,

    /// A route whose key is optional counts as protected.
    #[arg(long)]
    allow_optional: bool,

    #[command(flatten)]
    server: Server,
}

#[derive(Debug, Args)]
pub(crate) struct ShadowArgs {
    #[command(flatten)]
    server: Server,
}

/// How an endpoint is protected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Protection {
    /// A request without a key is refused.
    Required,
    /// A request without a key runs.
    Optional,
    /// Not at all.
    None,
    /// Requests were seen that ran without a key.
    SeenWithout,
}

#[derive(Debug, Serialize)]
struct Finding {
    method: String,
    path: String,
    protection: Protection,
    from: &'static str,
}

pub(super) async fn audit(args: AuditArgs) -> Result<ExitCode> {
    ensure!(
        args.openapi.is_some() || args.traffic,
        "what is to be audited? give --openapi FILE, or --traffic for what a server has seen"
    );
    let mut found = Vec::new();
    if let Some(file) = &args.openapi {
        let name = file.display();
        let text =
            std::fs::read_to_string(file).with_context(|| format!("{name} cannot be read"))?;
        let routes = routes(args.config)?;
        found = endpoints(&text, &routes).with_context(|| name.to_string())?;
    }
    if args.traffic {
        let seen: TrafficView = Client::new(&args.server)?.get("/traffic", &[]).await?;
        found.extend(seen.unprotected.into_iter().map(|it| Finding {
            method: it.method,
            path: it.path,
            protection: Protection::SeenWithout,
            from: "traffic",
        }));
    }
    let is_open = |finding: &&Finding| match finding.protection {
        Protection::Required => false,
        Protection::Optional => !args.allow_optional,
        Protection::None | Protection::SeenWithout => true,
    };
    let open = found.iter().filter(is_open).count();
    show(&found, open, args.server.output)?;
    Ok(if open == 0 { ExitCode::SUCCESS } else { ExitCode::from(UNPROTECTED) })
}

pub(super) async fn shadow(args: ShadowArgs) -> Result<ExitCode> {
    let seen: ShadowView = Client::new(&args.server)?.get("/shadow", &[]).await?;
    if args.server.output == Output::Json {
        print_json(&seen)?;
    } else {
        let row = |it: &Observed| {
            let digest = it.key_digest.clone().unwrap_or_default();
            vec![it.at.clone(), it.would.clone(), it.method.clone(), plain(&it.path), digest]
        };
        let rows: Vec<Vec<String>> = seen.observations.iter().map(row).collect();
        print(&table(&["at", "would", "method", "path", "key"], &rows));
    }
    Ok(ExitCode::SUCCESS)
}

fn show(found: &[Finding], open: usize, output: Output) -> Result<()> {
    if output == Output::Json {
        return print_json(&serde_json::json!({ "endpoints": found, "unprotected": open }));
    }
    let row = |it: &Finding| {
        let protection = match it.protection {
            Protection::Required => "yes",
            Protection::Optional => "only with a key",
            Protection::None => "NO",
            Protection::SeenWithout => "NO: ran without a key",
        };
        vec![protection.to_owned(), it.method.clone(), plain(&it.path), it.from.to_owned()]
    };
    let rows: Vec<Vec<String>> = found.iter().map(row).collect();
    print(&table(&["protected", "method", "path", "from"], &rows));
    print(&format!("\n{} endpoints change something, {open} of them unprotected.\n", found.len()));
    Ok(())
}

/// The routes of a configuration; of none, the defaults.
fn routes(config: Option<PathBuf>) -> Result<RouteTable> {
    // Where upstream is does not matter here.
    let upstream = Some("http://127.0.0.1:1".to_owned());
    Ok(Config::load(ServeArgs { config, upstream, ..ServeArgs::default() })?.routes)
}

/// Whether the gateway would protect this endpoint.
fn is_protected(routes: &RouteTable, method: &Method, path: &str) -> Protection {
    let route = routes.find(method, path);
    match (route.treatment(method), route.key) {
        (Treatment::Protect, KeyUse::Optional) => Protection::Optional,
        (Treatment::Protect, _) => Protection::Required,
        (Treatment::Observe | Treatment::PassOn, _) => Protection::None,
    }
}

/// The endpoints of an OpenAPI document that change something.
fn endpoints(text: &str, routes: &RouteTable) -> Result<Vec<Finding>> {
    // Every JSON document is one of YAML.
    let document: Value = match serde_json::from_str(text) {
        Ok(document) => document,
        Err(_) => serde_saphyr::from_str(text).context("it is neither JSON nor YAML")?,
    };
    let known = document["openapi"].is_string() || document["swagger"].is_string();
    ensure!(known, "it is not an OpenAPI document: it has no member `openapi`");
    let base = base_path(&document);
    let mut found = Vec::new();
    for (path, item) in document["paths"].as_object().into_iter().flatten() {
        for method in item.as_object().into_iter().flatten().map(|(name, _)| name) {
            let Ok(method) = method.to_ascii_uppercase().parse::<Method>() else { continue };
            if !METHODS.contains(&method.as_str()) || !changes_things(&method) {
                continue;
            }
            let path = format!("{base}{path}");
            // What stands in braces is one segment of any text.
            let protection = is_protected(routes, &method, &path);
            let method = method.to_string();
            found.push(Finding { method, path, protection, from: "openapi" });
        }
    }
    Ok(found)
}

/// The methods that a path of OpenAPI can have. Its other members are no methods.
const METHODS: [&str; 8] = ["GET", "PUT", "POST", "DELETE", "OPTIONS", "HEAD", "PATCH", "TRACE"];

/// What stands before all paths: that of the first server, or Swagger's own.
fn base_path(document: &Value) -> String {
    let server = document["servers"][0]["url"].as_str().unwrap_or_default();
    let path = match server.split_once("://") {
        Some((_, rest)) => rest.find('/').and_then(|at| rest.get(at..)).unwrap_or_default(),
        None => server,
    };
    let path = document["basePath"].as_str().unwrap_or(path);
    path.trim_end_matches('/').to_owned()
}

pub(crate) const AUDIT_EXAMPLES: &str = "\
Examples:
  onceward routes audit --openapi openapi.yaml
  onceward routes audit --openapi openapi.json --config onceward.toml -o json
  onceward routes audit --traffic

Ends with 0 when all is protected, with 2 when something is not, with 1 when it cannot be told.";

pub(crate) const SHADOW_EXAMPLES: &str = "\
Examples:
  onceward routes shadow
  onceward routes shadow -o json";

#[cfg(test)]
mod tests {
    use super::*;

    const YAML: &str = "
openapi: 3.1.0
servers: [{ url: 'https://api.example.com/v1/' }]
paths:
  /charges:
    get: {}
    post: {}
    parameters: []
  /charges/{id}:
    patch: {}
    put: {}
    delete: {}
";

    fn under(toml: &str) -> RouteTable {
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), format!("config_version = 1\n{toml}")).expect("written");
        routes(Some(file.path().into())).expect("a configuration")
    }

    fn lines(toml: &str) -> Vec<String> {
        let found = endpoints(YAML, &under(toml)).expect("a document");
        found.iter().map(|it| format!("{} {} {:?}", it.method, it.path, it.protection)).collect()
    }

    #[test]
    fn each_endpoint_that_may_act_twice_is_listed_with_its_protection() {
        let all = ["POST /v1/charges Required", "PATCH /v1/charges/{id} Required"];
        assert_eq!(lines(""), all);
        let optional = lines("[defaults]\nkey = \"optional\"");
        assert!(optional.iter().all(|line| line.ends_with("Optional")), "{optional:?}");
        let some = ["POST /v1/charges Required", "PATCH /v1/charges/{id} None"];
        for key in ["off", "shadow"] {
            let one = format!("[[route]]\nmatch = \"PATCH /v1/charges/*\"\nkey = \"{key}\"");
            assert_eq!(lines(&one), some, "{key}");
        }
    }

    #[test]
    fn what_is_no_openapi_document_is_refused() {
        let routes = under("");
        for text in ["", "a: [", "{\"paths\":{}}", "just words"] {
            assert!(endpoints(text, &routes).is_err(), "{text}");
        }
        let empty = endpoints("{\"openapi\":\"3.0.0\",\"paths\":{}}", &routes);
        assert!(empty.is_ok_and(|found| found.is_empty()));
    }
}
