//! The emulator of DynamoDB, as tests start and break it.

use std::{
    io::{Read as _, Write as _},
    net::TcpStream,
};

use onceward_testbed::DynamoDb;

/// What it says to a call, whatever credentials come with it.
fn call(server: &DynamoDb, operation: &str, body: &str) -> String {
    let mut stream = TcpStream::connect(server.address()).expect("connected");
    let request = format!(
        "POST / HTTP/1.1\r\nHost: x\r\nConnection: close\r\nX-Amz-Date: 20261118T000000Z\r\n\
         X-Amz-Target: DynamoDB_20120810.{operation}\r\nContent-Type: application/x-amz-json-1.0\r\n\
         Authorization: AWS4-HMAC-SHA256 Credential=a/20261118/local/dynamodb/aws4_request, \
         SignedHeaders=host, Signature=x\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes()).expect("written");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    answer
}

const TABLE: &str = r#"{"TableName": "kept", "BillingMode": "PAY_PER_REQUEST",
    "AttributeDefinitions": [{"AttributeName": "pk", "AttributeType": "S"}],
    "KeySchema": [{"AttributeName": "pk", "KeyType": "HASH"}]}"#;

#[test]
fn a_killed_emulator_has_its_tables_again_if_it_keeps_them_in_a_file() {
    for (mut server, keeps) in [(DynamoDb::start(), true), (DynamoDb::start_in_memory(), false)] {
        assert!(call(&server, "CreateTable", TABLE).contains("\"TableName\":\"kept\""));
        server.kill_9();
        assert!(TcpStream::connect(server.address()).is_err(), "it is gone");
        server.start_again();
        assert_eq!(call(&server, "ListTables", "{}").contains("\"kept\""), keeps);
    }
}
