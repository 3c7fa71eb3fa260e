//! Converts bootstrap settings.

use std::path::PathBuf;

use super::{report_argument, report_exclusive};
use crate::config::decode::Decoder;
use crate::config::decoded_block::DecodedBlock;
use crate::config::diagnostic::ProblemCode;
use crate::config::report::error_at;
use crate::config::value::expected_names;
use crate::model::node_class::bootstrap::{AgentBootstrap, Bootstrap, SecretSource};
use crate::model::node_class::image::AmiFamily;

const TOKEN: [&str; 3] = ["mint", "token_file", "token_ssm_parameter"];
const MACHINE_CONFIG: [&str; 2] = ["machine_config_file", "machine_config_ssm_parameter"];

/// Each bootstrap type with its arguments.
const KINDS: [(&str, &[&str]); 6] = [
    ("eks", &[]),
    ("kubeadm", &TOKEN),
    ("k3s", &AGENT),
    ("rke2", &AGENT),
    ("talos", &MACHINE_CONFIG),
    ("custom", &[TOKEN[0], TOKEN[1], TOKEN[2], "template"]),
];

const AGENT: [&str; 5] = [TOKEN[0], TOKEN[1], TOKEN[2], "server", "version"];

pub(super) fn lower_bootstrap(
    reader: &Decoder<'_>,
    class: &DecodedBlock,
    family: AmiFamily,
) -> Bootstrap {
    let Some(section) = class.block("bootstrap") else {
        return Bootstrap::Eks;
    };
    let kind = section.label();
    let Some((_, arguments)) = KINDS.iter().find(|(name, _)| *name == kind) else {
        let help = expected_names(kind, &KINDS.map(|(name, _)| name));
        let detail = "There is no bootstrap of this type.";
        let finding = error_at(ProblemCode::BlockLabel, section.label_span(), detail).help(help);
        // A missing label is already reported.
        if !kind.is_empty() {
            finding.report(class);
        }
        return Bootstrap::Eks;
    };
    check_arguments(section, arguments);
    check_family(section, family);
    if matches!(kind, "talos" | "custom") && class.is_set("user_data") {
        let detail = format!(
            "user_data cannot be combined with the bootstrap {kind:?}, which provides all user \
             data."
        );
        let code = ProblemCode::Conflict;
        report_argument(class, "user_data", code, detail, None);
    }
    match kind {
        "kubeadm" => token_source(reader, section).map(|token| Bootstrap::Kubeadm { token }),
        "k3s" => agent_bootstrap(reader, section).map(Bootstrap::K3s),
        "rke2" => agent_bootstrap(reader, section).map(Bootstrap::Rke2),
        "talos" => machine_config(reader, section)
            .map(|machine_config| Bootstrap::Talos { machine_config }),
        "custom" => custom_bootstrap(reader, section),
        _ => None,
    }
    .unwrap_or_default()
}

fn check_arguments(section: &DecodedBlock, expected: &[&str]) {
    for (_, arguments) in KINDS {
        for name in arguments.iter().filter(|name| !expected.contains(name)) {
            if let Some(read) = section.get(name) {
                let kind = section.label();
                let detail = format!(
                    "An argument named {name:?} is not expected in the bootstrap {kind:?}."
                );
                let code = ProblemCode::UnknownArgument;
                let mut finding = error_at(code, read.name_span, detail).label("not expected here");
                if !expected.is_empty() {
                    finding = finding.help(format!("expected one of: {}", expected.join(", ")));
                }
                finding.report(section);
            }
        }
    }
}

/// Rejects an image family that cannot run the shell script of its bootstrap, or that cannot be
/// Talos.
fn check_family(section: &DecodedBlock, family: AmiFamily) {
    let windows = family.windows_build().is_some();
    let is_supported = match section.label() {
        "kubeadm" | "k3s" | "rke2" => family != AmiFamily::Bottlerocket && !windows,
        "talos" => family == AmiFamily::Custom,
        _ => true,
    };
    if !is_supported {
        let (kind, family) = (section.label(), family.as_str());
        let detail = format!("Images of the family {family} do not support the bootstrap {kind}.");
        section.error(ProblemCode::Conflict, section.header, detail);
    }
}

/// The configured source of a secret.
fn secret_source(
    reader: &Decoder<'_>,
    section: &DecodedBlock,
    names: [&str; 2],
) -> Option<SecretSource> {
    let [file, parameter] = names;
    report_exclusive(section, file, parameter);
    let file = section
        .text(file)
        .map(|text: &str| -> PathBuf { reader.evaluator.environment.resolve(text) })
        .map(SecretSource::File);
    file.or_else(|| section.owned_text(parameter).map(SecretSource::SsmParameter))
}

/// The configured token, or a minted token unless `mint = false`.
fn token_source(reader: &Decoder<'_>, section: &DecodedBlock) -> Option<SecretSource> {
    let [mint, file, parameter] = TOKEN;
    let written = optional_token(reader, section);
    if written.is_some() || section.is_set(file) || section.is_set(parameter) {
        return written;
    }
    if section.flag(mint) == Some(false) {
        let detail = "The bootstrap requires a token.";
        let help = "write token_file or token_ssm_parameter";
        let code = ProblemCode::MissingArgument;
        report_argument(section, mint, code, detail, Some(help));
    }
    Some(SecretSource::Minted)
}

fn optional_token(reader: &Decoder<'_>, section: &DecodedBlock) -> Option<SecretSource> {
    let [mint, file, parameter] = TOKEN;
    let minted = section.flag(mint) == Some(true);
    if minted {
        report_exclusive(section, mint, file);
        report_exclusive(section, mint, parameter);
    }
    let source = secret_source(reader, section, [file, parameter]);
    source.or(minted.then_some(SecretSource::Minted))
}

fn agent_bootstrap(reader: &Decoder<'_>, section: &DecodedBlock) -> Option<AgentBootstrap> {
    Some(AgentBootstrap {
        server: section.owned_text("server"),
        token: token_source(reader, section)?,
        version: section.owned_text("version"),
    })
}

fn machine_config(reader: &Decoder<'_>, section: &DecodedBlock) -> Option<SecretSource> {
    let [file, parameter] = MACHINE_CONFIG;
    if !section.is_set(file) && !section.is_set(parameter) {
        let detail = "The bootstrap requires a machine configuration.";
        let help = "write machine_config_file or machine_config_ssm_parameter";
        let code = ProblemCode::MissingArgument;
        report_argument(section, file, code, detail, Some(help));
    }
    secret_source(reader, section, MACHINE_CONFIG)
}

fn custom_bootstrap(reader: &Decoder<'_>, section: &DecodedBlock) -> Option<Bootstrap> {
    if !section.is_set("template") {
        let detail = "The bootstrap \"custom\" requires the argument \"template\".";
        let help = "write template = file(\"userdata.sh\")";
        let code = ProblemCode::MissingArgument;
        report_argument(section, "template", code, detail, Some(help));
    }
    let token = optional_token(reader, section);
    let template = section.owned_text("template")?;
    Some(Bootstrap::Custom { template, token })
}
