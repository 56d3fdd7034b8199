//! The command `onceward-proof`.

use clap::Parser;

#[derive(Parser)]
#[command(about = "Simulates and tortures Onceward, and judges what it recorded")]
struct Arguments {}

fn main() {
    Arguments::parse();
}
