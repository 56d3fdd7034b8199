/// What an attacker wants upstream to take for a request of its own. It has no key, so that it is
/// refused wherever it is judged.
pub(super) const HIDDEN: &str = "POST /smuggled HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n";

/// Ways to say how long a body is: a name, header lines, and the body.
pub(super) fn framings() -> Vec<(String, String, String)> {
    framings_of(HIDDEN)
}

/// The same, where this is the body that can be read.
pub(super) fn framings_of(message: &str) -> Vec<(String, String, String)> {
    let length = message.len();
    let ended = format!("0\r\n\r\n{HIDDEN}");
    let mut all: Vec<(String, String, String)> = Vec::new();
    let mut add = |name: &str, headers: String, body: String| {
        all.push((name.to_owned(), headers, body));
    };
    add("a plain length", format!("Content-Length: {length}\r\n"), message.to_owned());
    add("no length", String::new(), HIDDEN.to_owned());
    add("a length of nothing", "Content-Length: 0\r\n".to_owned(), HIDDEN.to_owned());
    for (name, headers) in [
        ("length and chunks", "Content-Length: {all}\r\nTransfer-Encoding: chunked\r\n"),
        ("chunks and length", "Transfer-Encoding: chunked\r\nContent-Length: {all}\r\n"),
        ("chunks and a short length", "Transfer-Encoding: chunked\r\nContent-Length: 4\r\n"),
        ("a coding with a prefix", "Content-Length: {all}\r\nTransfer-Encoding: xchunked\r\n"),
        ("a space before the colon", "Content-Length: {all}\r\nTransfer-Encoding : chunked\r\n"),
        ("a tab before the coding", "Content-Length: {all}\r\nTransfer-Encoding:\tchunked\r\n"),
        ("a vertical tab", "Content-Length: {all}\r\nTransfer-Encoding: \x0bchunked\r\n"),
        ("a folded coding", "Content-Length: {all}\r\nTransfer-Encoding:\r\n chunked\r\n"),
        ("a folded header", "X-A: 1\r\n Transfer-Encoding: chunked\r\nContent-Length: {all}\r\n"),
        ("a name on two lines", "Content-Length: {all}\r\nTransfer-Encoding\r\n : chunked\r\n"),
        ("a bare line feed", "X-A: 1\nTransfer-Encoding: chunked\r\nContent-Length: {all}\r\n"),
        ("a bare return", "X-A: 1\rTransfer-Encoding: chunked\r\nContent-Length: {all}\r\n"),
        ("chunked before another", "Content-Length: {all}\r\nTransfer-Encoding: chunked, x\r\n"),
        ("chunked after another", "Content-Length: {all}\r\nTransfer-Encoding: x, chunked\r\n"),
        ("two codings", "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n"),
        ("chunked twice", "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n"),
        ("a quoted coding", "Content-Length: {all}\r\nTransfer-Encoding: \"chunked\"\r\n"),
        ("capitals", "Content-Length: {all}\r\ntransfer-encoding: CHUNKED\r\n"),
        ("a zero byte", "X-A: \0\r\nContent-Length: {all}\r\n"),
        ("an unknown coding", "Transfer-Encoding: cow\r\nContent-Length: {all}\r\n"),
        ("an empty coding", "Transfer-Encoding:\r\nContent-Length: {all}\r\n"),
        ("only chunks", "Transfer-Encoding: chunked\r\n"),
    ] {
        add(name, headers.replace("{all}", &ended.len().to_string()), ended.clone());
    }
    for value in [
        format!("+{length}"),
        format!("-{length}"),
        format!("0x{length:x}"),
        format!("{length} "),
        format!("{length},"),
        format!("{length}, {length}"),
        format!("{length}, 0"),
        format!("{length} 0"),
        format!("0{length}"),
        format!("{length}.0"),
        "18446744073709551615".to_owned(),
        "18446744073709551616".to_owned(),
        "99999999999999999999999999".to_owned(),
        String::new(),
    ] {
        add(
            &format!("a length of {value:?}"),
            format!("Content-Length: {value}\r\n"),
            message.to_owned(),
        );
    }
    let two = |first: usize, second: usize| {
        format!("Content-Length: {first}\r\nContent-Length: {second}\r\n")
    };
    add("two lengths, the first short", two(0, length), message.to_owned());
    add("two lengths, the second short", two(length, 0), message.to_owned());
    add("two equal lengths", two(length, length), message.to_owned());
    add("a length : of", format!("Content-Length : {length}\r\n"), message.to_owned());
    chunks(&mut add, &ended);
    all
}

/// Chunks that can be read in two ways.
fn chunks(add: &mut impl FnMut(&str, String, String), ended: &str) {
    for (name, body) in [
        ("an extension", format!("0;a=b\r\n\r\n{HIDDEN}")),
        ("an extension with a line feed", format!("2;\nxx\r\nhi\r\n{ended}")),
        ("an extension with a return", format!("2;a\rb\r\nhi\r\n{ended}")),
        ("a size with a line feed", format!("2\nhi\r\n{ended}")),
        ("a chunk without its end", format!("2\r\nhiXX{ended}")),
        ("a chunk that ends in a line feed", format!("2\r\nhi\n{ended}")),
        ("a size that overflows", format!("10000000000000002\r\nhi\r\n{ended}")),
        ("a size of many digits", format!("{}2\r\nhi\r\n{ended}", "0".repeat(40))),
        ("a size over all", format!("ffffffffffffffff\r\nhi\r\n{ended}")),
        ("a size with a sign", format!("+2\r\nhi\r\n{ended}")),
        ("a negative size", format!("-2\r\nhi\r\n{ended}")),
        ("a size with 0x", format!("0x2\r\nhi\r\n{ended}")),
        ("a size after a space", format!(" 2\r\nhi\r\n{ended}")),
        ("a size before a space", format!("2 \r\nhi\r\n{ended}")),
        ("no size", format!("\r\nhi\r\n{ended}")),
        ("trailers that say more", format!("0\r\nContent-Length: 9\r\n\r\n{HIDDEN}")),
        ("an end without its last line", format!("0\r\n{HIDDEN}")),
        ("a body that breaks off", "8\r\nhi".to_owned()),
    ] {
        add(name, "Transfer-Encoding: chunked\r\n".to_owned(), body);
    }
}
