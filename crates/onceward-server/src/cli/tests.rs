use clap::{Command, CommandFactory as _, Parser as _};

use super::Cli;

/// A command and those below it, each with its words.
fn all(command: &Command, above: &[String], found: &mut Vec<(Vec<String>, Command)>) {
    let words = [above, &[command.get_name().to_owned()]].concat();
    command.get_subcommands().for_each(|below| all(below, &words, found));
    found.push((words, command.clone()));
}

fn commands() -> Vec<(Vec<String>, Command)> {
    let mut found = Vec::new();
    all(&Cli::command(), &[], &mut found);
    found
}

/// The lines of its help that somebody would type.
fn examples(command: &Command) -> Vec<String> {
    let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    let Some((_, examples)) = help.split_once("Examples:\n") else { return Vec::new() };
    // A line may go on in the next one.
    let lines = examples.replace("\\\n", " ");
    let lines = lines.lines().map(str::trim).filter(|line| line.starts_with("onceward "));
    lines.map(str::to_owned).collect()
}

/// The words of a line, as a shell would hand them over; what comes after them is the shell's.
fn typed(line: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut quoted = false;
    for letter in line.chars() {
        match letter {
            '\'' => quoted = !quoted,
            ' ' if !quoted => words.push(String::new()),
            letter => words.last_mut().expect("a word").push(letter),
        }
    }
    assert!(!quoted, "{line}");
    words.retain(|word| !word.is_empty());
    words.into_iter().take_while(|word| word != ">").collect()
}

#[test]
fn the_help_of_every_command_ends_with_examples_that_it_understands() {
    let all = commands();
    assert!(all.len() > 40, "{} commands", all.len());
    for (words, command) in &all {
        let examples = examples(command);
        let name = words.join(" ");
        assert!(!examples.is_empty(), "`{name} --help` has no examples");
        for example in examples {
            let typed = typed(&example);
            assert!(typed.starts_with(words), "of another command than `{name}`: {example}");
            if let Err(error) = Cli::try_parse_from(&typed) {
                panic!("`{name} --help` says {example}\n{error}");
            }
        }
    }
}

#[test]
fn an_example_with_a_flag_that_is_not_there_would_be_noticed() {
    let command = Command::new("x").after_help(
        "Examples:\n  In words:\n    onceward keys show \\\n        --all 'a b'\n  onceward stats > x",
    );
    let found = examples(&command);
    assert_eq!(found.len(), 2, "{found:?}");
    assert_eq!(typed(&found[0]), ["onceward", "keys", "show", "--all", "a b"]);
    assert!(Cli::try_parse_from(typed(&found[0])).is_err());
    assert_eq!(typed(&found[1]), ["onceward", "stats"]);
    assert!(Cli::try_parse_from(typed(&found[1])).is_ok());
    assert!(examples(&Command::new("y")).is_empty());
}
