//! A conditional PutItem and a conditional UpdateItem for each key, on a table without indexes.

use anyhow::{Context as _, ensure};
use aws_sdk_dynamodb::{
    Client,
    config::{BehaviorVersion, Credentials, Region},
    primitives::Blob,
    types::{
        AttributeDefinition, AttributeValue, BillingMode, KeySchemaElement, KeyType,
        ScalarAttributeType,
    },
};
use futures_util::future::BoxFuture;

use super::{BODY, FINGERPRINT, STATUS};
use crate::stores::{drive::Work, open::table_and_endpoint};

pub(super) async fn workers(url: &str, links: usize) -> anyhow::Result<Vec<Box<dyn Work>>> {
    let (table, endpoint) = table_and_endpoint(url)?;
    let credentials = Credentials::new("emulator", "emulator", None, None, "emulator");
    let config = aws_config::defaults(BehaviorVersion::latest())
        .region(Region::new("local"))
        .endpoint_url(endpoint)
        .credentials_provider(credentials);
    let client = Client::new(&config.load().await);
    let definition = AttributeDefinition::builder()
        .attribute_name("key")
        .attribute_type(ScalarAttributeType::S)
        .build()?;
    let key = KeySchemaElement::builder().attribute_name("key").key_type(KeyType::Hash).build()?;
    client
        .create_table()
        .table_name(table)
        .attribute_definitions(definition)
        .key_schema(key)
        .billing_mode(BillingMode::PayPerRequest)
        .send()
        .await?;
    let link = Link { client, table: table.to_owned() };
    Ok((0..links).map(|_| Box::new(link.clone()) as Box<dyn Work>).collect())
}

#[derive(Clone)]
struct Link {
    client: Client,
    table: String,
}

fn bytes(bytes: &[u8]) -> AttributeValue {
    AttributeValue::B(Blob::new(bytes))
}

impl Link {
    async fn one(&self, key: &str) -> anyhow::Result<()> {
        let attempt: [u8; 16] = rand::random();
        self.client
            .put_item()
            .table_name(&self.table)
            .item("key", AttributeValue::S(key.to_owned()))
            .item("attempt", bytes(&attempt))
            .item("fingerprint", bytes(FINGERPRINT))
            .condition_expression("attribute_not_exists(#k)")
            .expression_attribute_names("#k", "key")
            .send()
            .await?;
        self.client
            .update_item()
            .table_name(&self.table)
            .key("key", AttributeValue::S(key.to_owned()))
            .update_expression("SET #s = :s, #b = :b")
            .condition_expression("attempt = :a AND attribute_not_exists(#s)")
            .expression_attribute_names("#s", "status")
            .expression_attribute_names("#b", "body")
            .expression_attribute_values(":s", AttributeValue::N(STATUS.to_string()))
            .expression_attribute_values(":b", bytes(BODY))
            .expression_attribute_values(":a", bytes(&attempt))
            .send()
            .await?;
        Ok(())
    }
}

impl Work for Link {
    fn first<'a>(&'a mut self, keys: &'a [String]) -> BoxFuture<'a, anyhow::Result<()>> {
        Box::pin(async move {
            for key in keys {
                self.one(key).await?;
            }
            Ok(())
        })
    }

    fn replay<'a>(&'a mut self, keys: &'a [String]) -> BoxFuture<'a, anyhow::Result<()>> {
        Box::pin(async move {
            for key in keys {
                let get = self.client.get_item().table_name(&self.table).consistent_read(true);
                let got = get.key("key", AttributeValue::S(key.clone())).send().await?;
                let item = got.item.context("a completed item")?;
                let body = item.get("body").and_then(|body| body.as_b().ok());
                ensure!(body.is_some_and(|body| body.as_ref() == BODY), "another reply");
            }
            Ok(())
        })
    }
}
