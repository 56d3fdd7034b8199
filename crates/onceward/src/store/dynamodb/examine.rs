//! Whether a table can be relied on: a look that writes nothing and makes nothing.

use aws_sdk_dynamodb::{
    error::{ProvideErrorMetadata as _, SdkError},
    types::{IndexStatus, PointInTimeRecoveryStatus, TableDescription, TableStatus},
};

use super::{
    DynamoStore, Inner,
    call::{Failed, Kind},
    migrate::{MIGRATIONS, schema_of},
    open::{BY_DUE, BY_LISTED, DynamoOptions},
};
use crate::store::{
    StoreError,
    site::{By, Finding, Schema, Site, SiteFuture, Step},
};

mod permissions; // of the role that it is called by

impl Site for DynamoOptions {
    fn examine(&self) -> SiteFuture<'_, Vec<Finding>> {
        Box::pin(async {
            let inner = self.inner().await;
            let described = inner.described().await?;
            let mut findings = match &described {
                Some(table) => vec![status(table), indexes(table), protection(table)],
                None => Vec::new(),
            };
            if described.is_some() {
                findings.push(recovery(&inner).await);
                findings.push(permissions::permissions(&inner).await);
            }
            findings.push(clock(&inner));
            findings.push(match inner.version(described.is_some()).await {
                Ok(schema) => Finding::schema(&schema),
                Err(error) => Finding::failed("schema", error.to_string()),
            });
            Ok(findings)
        })
    }

    fn schema(&self) -> SiteFuture<'_, Schema> {
        Box::pin(async {
            let inner = self.inner().await;
            let is_there = inner.described().await?.is_some();
            Ok(inner.version(is_there).await?)
        })
    }

    fn migrate(&self) -> SiteFuture<'_, Vec<Step>> {
        Box::pin(async {
            let options = self.clone().create_table(true);
            let (_, applied) = DynamoStore::open_by(options, MIGRATIONS, By::Hand).await?;
            Ok(applied)
        })
    }
}

impl Inner {
    /// What the service says of the table; `None` if there is none.
    async fn described(&self) -> Result<Option<TableDescription>, StoreError> {
        let describe = || self.client.describe_table().table_name(&self.table).send();
        match self.calls.make(Kind::Read, describe).await {
            Ok(described) => Ok(described.table),
            Err(Failed::Said(_)) => Ok(None),
            Err(Failed::Store(error)) if self.is_there().await? => Err(error),
            Err(Failed::Store(_)) => Ok(None),
        }
    }

    async fn version(&self, is_there: bool) -> Result<Schema, StoreError> {
        let item = if is_there { self.schema().await? } else { None };
        schema_of(item.as_ref(), MIGRATIONS)
    }
}

fn status(table: &TableDescription) -> Finding {
    const NAME: &str = "table";
    match table.table_status() {
        Some(TableStatus::Active) => Finding::ok(NAME, "it is active"),
        Some(other) => {
            Finding::note(NAME, format!("it is {other}"), "wait until the table is active")
        }
        None => Finding::failed(NAME, "the service does not say"),
    }
}

fn indexes(table: &TableDescription) -> Finding {
    const NAME: &str = "indexes";
    let is_ready = |name: &str| {
        let mut indexes = table.global_secondary_indexes().iter();
        indexes.any(|index| {
            index.index_name() == Some(name) && index.index_status() == Some(&IndexStatus::Active)
        })
    };
    let missing: Vec<&str> =
        [BY_DUE, BY_LISTED].into_iter().filter(|name| !is_ready(name)).collect();
    if missing.is_empty() {
        return Finding::ok(NAME, "all are there");
    }
    let advice = "workers find nothing without them: create the table anew by `onceward migrate up`, or \
                  wait until they are active";
    Finding::broken(NAME, format!("missing or not active: {}", missing.join(", ")), advice)
}

fn protection(table: &TableDescription) -> Finding {
    const NAME: &str = "deletion protection";
    match table.deletion_protection_enabled() {
        Some(true) => Finding::ok(NAME, "on"),
        _ => Finding::note(
            NAME,
            "off",
            "switch it on: without the table every key looks new, and everything runs again",
        ),
    }
}

/// Whether the table can be put back as it was a moment ago.
async fn recovery(inner: &Inner) -> Finding {
    const NAME: &str = "point-in-time recovery";
    let asked = inner.client.describe_continuous_backups().table_name(&inner.table).send().await;
    let backups = match asked {
        Ok(asked) => asked.continuous_backups_description,
        Err(SdkError::ServiceError(said)) => {
            let code = said.err().code().unwrap_or("no reason given").to_owned();
            return Finding::note(
                NAME,
                format!("the service does not say: {code}"),
                "allow dynamodb:DescribeContinuousBackups, or see for yourself that it is on",
            );
        }
        Err(error) => return Finding::failed(NAME, error.to_string()),
    };
    let recovery = backups.and_then(|backups| backups.point_in_time_recovery_description);
    match recovery.and_then(|recovery| recovery.point_in_time_recovery_status) {
        Some(PointInTimeRecoveryStatus::Enabled) => Finding::ok(NAME, "on"),
        _ => Finding::note(
            NAME,
            "off",
            "switch it on: what was deleted or overwritten by mistake is else gone, and what it stood \
             for runs again",
        ),
    }
}

/// By the date of the answers so far. What is over the bound is refused by the store itself.
fn clock(inner: &Inner) -> Finding {
    const NAME: &str = "clock skew";
    let (off, ahead) = inner.skew.at_least();
    let way = if ahead { "ahead of" } else { "behind" };
    let found = format!("this machine is at least {:.3} s {way} the service", off.as_secs_f64());
    match inner.skew.check() {
        Ok(()) => Finding::ok(NAME, found),
        Err(_) => {
            Finding::broken(NAME, found, "set this machine's clock by NTP: it decides leases")
        }
    }
}
