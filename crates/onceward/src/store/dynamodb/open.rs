//! Connecting, and the table: made when it is not there, and refused when it is of another version.

use std::{sync::Arc, time::Duration};

use aws_sdk_dynamodb::{
    Client,
    config::{BehaviorVersion, Credentials, Region, retry::RetryConfig, timeout::TimeoutConfig},
    error::{ProvideErrorMetadata, SdkError},
    operation::{
        create_table::CreateTableError, describe_table::DescribeTableError, query::QueryError,
    },
    types::{
        AttributeDefinition, BillingMode, GlobalSecondaryIndex, IndexStatus, KeySchemaElement,
        KeyType, Projection, ProjectionType, ScalarAttributeType, TableStatus,
    },
};
use tokio::time::{Instant, sleep};

use super::{
    ANSWER_TIME_MAX, DynamoStore, Inner, STORE,
    call::{Calls, Failed, Kind, damaged},
    item::{Item, Reader},
    migrate::{MIGRATIONS, schema_key},
    skew::Skew,
    table::Slice,
};
use crate::{
    clock::{Clock, SystemClock},
    store::{
        StoreError, StoreErrorKind,
        site::{By, Migration, Step},
    },
};

/// How long a table may take to be made.
const MADE_WITHIN: Duration = Duration::from_secs(120);

/// The index of what a worker has to look at, by time.
pub(super) const BY_DUE: &str = "by_due";

/// The index of all records and audit records, by time.
pub(super) const BY_LISTED: &str = "by_listed";

/// How to reach a table, and what to do about one that is not there.
#[derive(Clone, Debug)]
pub struct DynamoOptions {
    table: String,
    region: Option<String>,
    endpoint: Option<String>,
    client: Option<Client>,
    clock: Arc<dyn Clock>,
    creates: bool,
    shards: u32,
    calls_at_once: usize,
}

/// Why a table cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DynamoOpenError {
    /// The service does not answer, or refuses.
    #[error("the table cannot be reached")]
    Unavailable(#[source] StoreError),
    /// It is not there, and was not to be made.
    #[error("there is no table {0}, and it was not to be created")]
    NoTable(String),
    /// It was not ready in time.
    #[error("the table {0} is still being created")]
    NotReady(String),
    /// It was made without an index, or the index is not ready: nothing would be swept, reaped or listed.
    #[error(
        "the table {table} cannot be read by the index {index}: create it, as docs/guide/dynamodb.md says"
    )]
    NoIndex {
        /// Its name.
        table: String,
        /// The index that is missing.
        index: &'static str,
    },
    /// It is of a version that does not let this one in.
    #[error(
        "the table {table} has items of version {found}, and this version knows {known}; use a newer \
         onceward"
    )]
    Newer {
        /// Its name.
        table: String,
        /// The version of what is in it.
        found: u32,
        /// The newest version that is known here.
        known: u32,
    },
    /// What is pending shuts out processes that may be at work.
    #[error(
        "the migration `{migration}` of the table {table} shuts out older processes: stop them, and run \
         `onceward migrate up`"
    )]
    Breaking {
        /// Its name.
        table: String,
        /// The migration.
        migration: &'static str,
    },
}

impl DynamoOptions {
    /// The table of this name; region, endpoint and credentials by the usual AWS environment. It is
    /// created if it is not there.
    pub fn new(table: impl Into<String>) -> Self {
        DynamoOptions {
            table: table.into(),
            region: None,
            endpoint: None,
            client: None,
            clock: Arc::new(SystemClock),
            creates: true,
            shards: 16,
            calls_at_once: 256,
        }
    }

    /// The same in this region.
    #[must_use]
    pub fn region(self, region: impl Into<String>) -> Self {
        DynamoOptions { region: Some(region.into()), ..self }
    }

    /// The same at this address: an emulator, or a VPC endpoint. An emulator, which is one without
    /// TLS, is given credentials that mean nothing if the environment has none.
    #[must_use]
    pub fn endpoint(self, url: impl Into<String>) -> Self {
        DynamoOptions { endpoint: Some(url.into()), ..self }
    }

    /// The same by the settings of this client: credentials, proxies, TLS. What it says about retries
    /// and timeouts does not hold.
    #[must_use]
    pub fn client(self, client: Client) -> Self {
        DynamoOptions { client: Some(client), ..self }
    }

    /// The same on another clock.
    #[must_use]
    pub fn clock(self, clock: Arc<dyn Clock>) -> Self {
        DynamoOptions { clock, ..self }
    }

    /// Whether a table that is not there is created. It is unless said otherwise.
    #[must_use]
    pub fn create_table(self, creates: bool) -> Self {
        DynamoOptions { creates, ..self }
    }

    /// In how many parts the indexes of a table that is created now are written: each takes about 500
    /// requests a second. 16 unless said otherwise; stays as it is once there is a table.
    #[must_use]
    pub fn shards(self, shards: u32) -> Self {
        DynamoOptions { shards: shards.clamp(1, 999), ..self }
    }

    async fn connect(&self, skew: &Skew) -> Client {
        let timeouts = TimeoutConfig::builder()
            .connect_timeout(Duration::from_secs(1))
            .operation_attempt_timeout(ANSWER_TIME_MAX)
            .build();
        let mut config = match &self.client {
            Some(client) => client.config().to_builder(),
            None => {
                let mut loader = aws_config::defaults(BehaviorVersion::latest());
                if let Some(region) = &self.region {
                    loader = loader.region(Region::new(region.clone()));
                }
                if let Some(endpoint) = &self.endpoint {
                    loader = loader.endpoint_url(endpoint);
                }
                if self.is_emulator() {
                    loader = loader.credentials_provider(Credentials::new(
                        "emulator", "emulator", None, None, "emulator",
                    ));
                }
                aws_sdk_dynamodb::config::Builder::from(&loader.load().await)
            }
        };
        config = config
            .retry_config(RetryConfig::disabled())
            .timeout_config(timeouts)
            .interceptor(skew.clone());
        Client::from_conf(config.build())
    }

    /// What makes calls, as if the table was there.
    pub(super) async fn inner(&self) -> Inner {
        let skew = Skew::default();
        Inner {
            client: self.connect(&skew).await,
            calls: Calls::new(self.calls_at_once),
            skew,
            table: self.table.clone(),
            clock: Arc::clone(&self.clock),
            shards: self.shards,
        }
    }

    fn is_emulator(&self) -> bool {
        let plain = self.endpoint.as_ref().is_some_and(|url| url.starts_with("http://"));
        plain && std::env::var_os("AWS_ACCESS_KEY_ID").is_none()
    }
}

impl DynamoStore {
    /// Connects to the table, and creates it if it is not there.
    ///
    /// # Errors
    /// When the service does not answer or refuses, when there is no such table and none is to be
    /// created, and when what is in it is of a version that does not let this one in.
    ///
    /// # Cancel safety
    /// May be dropped; a table may have been created.
    pub async fn open(options: DynamoOptions) -> Result<Self, DynamoOpenError> {
        Self::open_by(options, MIGRATIONS, By::Start).await.map(|(store, _)| store)
    }

    /// The same with these migrations, and which of them were made.
    pub(super) async fn open_by(
        options: DynamoOptions,
        migrations: &'static [Migration],
        by: By,
    ) -> Result<(Self, Vec<Step>), DynamoOpenError> {
        let mut inner = options.inner().await;
        let unavailable = DynamoOpenError::Unavailable;
        let described = match inner.schema().await {
            Ok(found) => found,
            Err(_) if !inner.is_there().await.map_err(unavailable)? => {
                if !options.creates {
                    return Err(DynamoOpenError::NoTable(options.table));
                }
                inner.create().await.map_err(unavailable)?;
                None
            }
            // It may be on its way, made by another process.
            Err(_) => None,
        };
        if described.is_none() {
            inner.wait_until_ready().await?;
        }
        let (described, applied) = inner.bring_up(described, migrations, by).await?;
        let shards = Reader(&described).number("shards");
        inner.shards = shards.map_err(damaged).map_err(unavailable)?;
        for (index, names) in [(BY_DUE, ("due", "due_at")), (BY_LISTED, ("listed", "listed_at"))] {
            if !inner.has_index(index, names).await.map_err(unavailable)? {
                return Err(DynamoOpenError::NoIndex { table: options.table, index });
            }
        }
        Ok((DynamoStore(Arc::new(inner)), applied))
    }
}

impl Inner {
    pub(super) async fn schema(&self) -> Result<Option<Item>, StoreError> {
        self.get(schema_key()).await
    }

    /// Whether this index can be read. Asked with the rights that the workers need anyway.
    async fn has_index(&self, index: &str, names: (&str, &str)) -> Result<bool, StoreError> {
        let part = "none".to_owned();
        let (from, to, ascending, limit) = (0, 0, true, Some(1));
        let slice = Slice { index, names, part, from, to, ascending, limit, after: None };
        let Err(error) = self.slice(&slice).await else { return Ok(true) };
        use std::error::Error as _;
        let said = error.source().and_then(|source| {
            source.downcast_ref::<SdkError<QueryError>>().and_then(ProvideErrorMetadata::code)
        });
        match said {
            Some("ValidationException") => Ok(false),
            _ => Err(error),
        }
    }

    pub(super) async fn is_there(&self) -> Result<bool, StoreError> {
        Ok(self.status().await?.is_some())
    }

    /// The status of the table and of its indexes; `None` if there is no table.
    async fn status(&self) -> Result<Option<bool>, StoreError> {
        let describe = || self.client.describe_table().table_name(&self.table).send();
        let described = match self.calls.make(Kind::Read, describe).await {
            Ok(described) => described,
            Err(Failed::Said(_)) => return Ok(None),
            Err(Failed::Store(error)) => {
                use std::error::Error as _;
                let missing = error.source().is_some_and(|source| {
                    source
                        .downcast_ref::<SdkError<DescribeTableError>>()
                        .and_then(|error| error.as_service_error())
                        .is_some_and(DescribeTableError::is_resource_not_found_exception)
                });
                return if missing { Ok(None) } else { Err(error) };
            }
        };
        let Some(table) = described.table() else { return Ok(None) };
        let indexes = table.global_secondary_indexes();
        let ready = table.table_status() == Some(&TableStatus::Active)
            && indexes.iter().all(|index| index.index_status() == Some(&IndexStatus::Active));
        Ok(Some(ready))
    }

    async fn wait_until_ready(&self) -> Result<(), DynamoOpenError> {
        let begun = Instant::now();
        let mut pause = Duration::from_millis(5);
        loop {
            match self.status().await.map_err(DynamoOpenError::Unavailable)? {
                Some(true) => return Ok(()),
                _ if begun.elapsed() > MADE_WITHIN => {
                    return Err(DynamoOpenError::NotReady(self.table.clone()));
                }
                _ => sleep(pause).await,
            }
            pause = (pause * 2).min(Duration::from_secs(2));
        }
    }

    async fn create(&self) -> Result<(), StoreError> {
        let create = || {
            let call = self.client.create_table().table_name(&self.table);
            let call = ["pk", "sk", "due", "listed"]
                .into_iter()
                .fold(call, |call, name| call.attribute_definitions(text_attribute(name)));
            ["due_at", "listed_at"]
                .into_iter()
                .fold(call, |call, name| call.attribute_definitions(number_attribute(name)))
                .key_schema(part_of_key("pk", KeyType::Hash))
                .key_schema(part_of_key("sk", KeyType::Range))
                .global_secondary_indexes(index(BY_DUE, "due", "due_at", &DUE_HAS))
                .global_secondary_indexes(index(BY_LISTED, "listed", "listed_at", &[]))
                .billing_mode(BillingMode::PayPerRequest)
                .send()
        };
        match self.calls.make(Kind::Write, create).await {
            Ok(_) => Ok(()),
            Err(Failed::Said(said))
                if matches!(*said, CreateTableError::ResourceInUseException(_)) =>
            {
                Ok(())
            }
            Err(failed) => Err(failed.into_error()),
        }
    }
}

/// What the index by due time has of a record, for those who count.
const DUE_HAS: [&str; 3] = ["created_at", "started_at", "tombstone"];

fn text_attribute(name: &str) -> AttributeDefinition {
    attribute(name, ScalarAttributeType::S)
}

fn number_attribute(name: &str) -> AttributeDefinition {
    attribute(name, ScalarAttributeType::N)
}

fn attribute(name: &str, of: ScalarAttributeType) -> AttributeDefinition {
    let attribute = AttributeDefinition::builder().attribute_name(name).attribute_type(of).build();
    attribute.unwrap_or_else(|_| unreachable!("a name and a type"))
}

fn part_of_key(name: &str, kind: KeyType) -> KeySchemaElement {
    let part = KeySchemaElement::builder().attribute_name(name).key_type(kind).build();
    part.unwrap_or_else(|_| unreachable!("a name and a type"))
}

fn index(name: &str, partition: &str, sort: &str, has: &[&str]) -> GlobalSecondaryIndex {
    let kind = if has.is_empty() { ProjectionType::KeysOnly } else { ProjectionType::Include };
    let named = (!has.is_empty()).then(|| has.iter().map(|&name| name.to_owned()).collect());
    let projection = Projection::builder().projection_type(kind).set_non_key_attributes(named);
    let index = GlobalSecondaryIndex::builder()
        .index_name(name)
        .key_schema(part_of_key(partition, KeyType::Hash))
        .key_schema(part_of_key(sort, KeyType::Range))
        .projection(projection.build())
        .build();
    index.unwrap_or_else(|_| unreachable!("a name and a key"))
}

impl Inner {
    /// Whether our clock may decide. One that was found to be off is looked at anew: it may have been
    /// set right, or an answer was read late.
    pub(super) async fn check_clock(&self) -> Result<(), StoreError> {
        if self.skew.check().is_err() {
            self.ping().await?;
        }
        self.skew.check()
    }

    /// Whether the table is there and is ours.
    pub(super) async fn ping(&self) -> Result<(), StoreError> {
        match self.schema().await? {
            Some(_) => Ok(()),
            None => {
                self.calls.count_epoch();
                let context = "the table does not say of which version it is";
                Err(StoreError::new(StoreErrorKind::Unavailable, STORE, context))
            }
        }
    }
}
