//! Formats of strings that identify external objects.
//!
//! Source: spec/aws.md §1.1. A format must match the whole string. Karpenter searches for most
//! formats within the string, so it accepts `my-ami-1` as an image id.

use core::net::IpAddr;

use crate::model::node_class::image::AmiFamily;

macro_rules! formats {
    ($($(#[$about:meta])* $name:ident, $expected:literal, $described:literal;)+) => {
        /// A format of strings.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum IdFormat {
            $($(#[$about])* $name,)+
        }

        impl IdFormat {
            /// A description that completes "must be …".
            pub fn expected_form(self) -> &'static str {
                match self {
                    $(Self::$name => $expected,)+
                }
            }

            /// A description for the reference table.
            pub fn describe(self) -> &'static str {
                match self {
                    $(Self::$name => $described,)+
                }
            }
        }
    };
}

formats! {
    /// Any string that is not empty.
    Filled, "a string that is not empty", "string, not empty";
    /// Family and version of images.
    Alias, "a family and a version such as \"al2023@latest\"", "`family@version`";
    /// Id of an image.
    ImageId, "an id such as \"ami-0123456789abcdef0\"", "`ami-…`";
    /// Id of a subnet.
    SubnetId, "an id such as \"subnet-0123456789abcdef0\"", "`subnet-…`";
    /// Id of a security group.
    SecurityGroupId, "an id such as \"sg-0123456789abcdef0\"", "`sg-…`";
    /// Id of a capacity reservation.
    ReservationId, "an id such as \"cr-0123456789abcdef0\"", "`cr-…`";
    /// Id of a placement group.
    PlacementGroupId, "an id such as \"pg-0123456789abcdef0\"", "`pg-…`";
    /// Id of a snapshot.
    SnapshotId, "an id such as \"snap-0123456789abcdef0\"", "`snap-…`";
    /// External ID of an assumed role.
    ExternalId, "an external ID of 2 to 1,224 letters, digits and characters of \"_+=,.@:/-\"",
        "external ID";
    /// Id of an account.
    Account, "an account id of twelve digits", "account id";
    /// Name of an IAM role, without its path.
    RoleName, "the name of an IAM role", "name, without path";
    /// Name of an instance profile, without its path.
    ProfileName, "the name of an instance profile", "name, without path";
    /// ARN of an IAM role.
    RoleArn, "an ARN such as \"arn:aws:iam::123456789012:role/outrigger\"",
        "`arn:aws:iam::…:role/…`";
    /// Name or ARN of an SSM parameter.
    Parameter, "the name or ARN of an SSM parameter", "name or ARN";
    /// Name or URL of an SQS queue.
    Queue, "the name or the https URL of an SQS queue", "name or `https://…`";
    /// Name of a cluster in EKS.
    EksName, "the name of a cluster in EKS", "name";
    /// An HTTPS URL.
    Https, "a URL such as \"https://10.0.0.1:6443\"", "`https://…`";
    /// URL of a proxy.
    Proxy, "a URL such as \"http://10.0.0.1:3128\", without a user name",
        "`http://…`, `https://…` or `socks5://…`";
    /// An HTTP or HTTPS URL of a service.
    Endpoint, "a URL such as \"http://127.0.0.1:4317\"", "`http://…` or `https://…`";
    /// Base64 data.
    Base64, "a base64 string", "base64";
    /// A range of addresses.
    Cidr, "a range of addresses such as \"10.100.0.0/16\"", "`address/bits`";
    /// A version as Kubernetes distributions write it.
    Version, "a version such as \"v1.33.4+k3s1\"", "version";
    /// Namespace and name of an object.
    ObjectName, "a namespace and a name such as \"kube-system/outrigger\"", "`namespace/name`";
}

/// Maximum length of the names of IAM roles and instance profiles. Source: IAM quotas.
const ROLE_MAX: usize = 64;
const PROFILE_MAX: usize = 128;
/// Maximum length of an external ID. Source: `AssumeRole` of STS.
const EXTERNAL_ID_MAX: usize = 1224;
/// Maximum length of a queue name. Source: `CreateQueue` of SQS.
const QUEUE_MAX: usize = 80;
/// Maximum length of a cluster name. Source: `CreateCluster` of EKS.
const EKS_NAME_MAX: usize = 100;
/// Maximum length of an alias.
const ALIAS_MAX: usize = 30;

impl IdFormat {
    /// Returns whether a string has this format.
    pub fn is_valid(self, text: &str) -> bool {
        match self {
            Self::Filled => !text.trim().is_empty(),
            Self::Alias => parse_alias(text).is_some(),
            Self::ImageId => is_id(text, "ami-"),
            Self::SubnetId => is_id(text, "subnet-"),
            Self::SecurityGroupId => is_id(text, "sg-"),
            Self::ReservationId => is_id(text, "cr-"),
            Self::PlacementGroupId => is_id(text, "pg-"),
            Self::SnapshotId => is_id(text, "snap-"),
            Self::ExternalId => text.len() > 1 && consists_of(text, EXTERNAL_ID_MAX, "_+=,.@:/-"),
            Self::Account => is_account(text),
            Self::RoleName => consists_of(text, ROLE_MAX, "+=,.@-_"),
            Self::ProfileName => consists_of(text, PROFILE_MAX, "+=,.@-_"),
            Self::RoleArn => is_role_arn(text),
            Self::Parameter => consists_of(text, 1024, "/:.-_"),
            Self::Queue => is_https(text) || is_queue_name(text),
            Self::EksName => {
                consists_of(text, EKS_NAME_MAX, "-_")
                    && text.starts_with(|c: char| c.is_ascii_alphanumeric())
            }
            Self::Https => is_https(text),
            Self::Proxy => is_service(text, &["http://", "https://", "socks5://"]),
            Self::Endpoint => is_service(text, &["http://", "https://"]),
            Self::Base64 => {
                let digits = text.trim_end_matches('=');
                text.len().is_multiple_of(4)
                    && text.len() - digits.len() <= 2
                    && consists_of(digits, usize::MAX, "+/")
            }
            Self::Cidr => is_cidr(text),
            // The version is inserted into a script.
            Self::Version => consists_of(text, 64, "+.-_"),
            Self::ObjectName => text.split_once('/').is_some_and(|(namespace, name)| {
                is_dns(namespace, 63, "-") && is_dns(name, 253, "-.")
            }),
        }
    }

    /// A hint for a string that does not have this format.
    pub fn hint_for(self, text: &str) -> Option<String> {
        match self {
            Self::Alias => match text.split_once('@') {
                Some((family, _)) if is_windows(family) => {
                    Some(format!("the only Windows version is \"{family}@latest\""))
                }
                Some(_) => Some(format!("supported families: {}", alias_families().join(", "))),
                None => None,
            },
            // IAM names are unique, whatever their path. Karpenter recreates an instance profile
            // every 15 minutes for a role with a path (spec §10, 82).
            Self::RoleName | Self::ProfileName => {
                let (_, name) = text.rsplit_once('/')?;
                self.is_valid(name)
                    .then(|| format!("write {name:?}: IAM names are unique, whatever their path"))
            }
            _ => None,
        }
    }
}

/// The families that an alias supports.
pub(super) fn alias_families() -> Vec<&'static str> {
    let custom = AmiFamily::Custom.as_str();
    let names = AmiFamily::NAMES.iter().copied();
    names.filter(|name| *name != custom).collect()
}

fn is_windows(family: &str) -> bool {
    AmiFamily::parse(family).is_some_and(|family| family.windows_build().is_some())
}

/// Family and version of an alias.
pub(super) fn parse_alias(text: &str) -> Option<(AmiFamily, &str)> {
    let (name, version) = text.split_once('@')?;
    let family = AmiFamily::parse(name).filter(|family| *family != AmiFamily::Custom)?;
    let latest = version == "latest";
    let is_valid = consists_of(version, ALIAS_MAX, "._-") && text.len() <= ALIAS_MAX;
    (is_valid && (latest || family.windows_build().is_none())).then_some((family, version))
}

/// Returns whether a string has 1 to `max` characters, each a letter, a digit or one of `others`.
fn consists_of(text: &str, max: usize, others: &str) -> bool {
    !text.is_empty()
        && text.len() <= max
        && text.chars().all(|c| c.is_ascii_alphanumeric() || others.contains(c))
}

/// Returns whether a string is a valid Kubernetes name. Source: Kubernetes, object names and ids.
fn is_dns(text: &str, max: usize, others: &str) -> bool {
    consists_of(text, max, others)
        && text.starts_with(is_lower_or_digit)
        && text.ends_with(is_lower_or_digit)
        && !text.chars().any(|c| c.is_ascii_uppercase())
}

fn is_lower_or_digit(c: char) -> bool {
    c.is_ascii_lowercase() || c.is_ascii_digit()
}

fn is_id(text: &str, prefix: &str) -> bool {
    text.strip_prefix(prefix).is_some_and(|rest| {
        !rest.is_empty() && rest.len() <= 64 && rest.chars().all(is_lower_or_digit)
    })
}

fn is_account(text: &str) -> bool {
    text.len() == 12 && text.bytes().all(|byte| byte.is_ascii_digit())
}

fn is_role_arn(text: &str) -> bool {
    let parts: Vec<&str> = text.splitn(6, ':').collect();
    let ["arn", partition, "iam", "", account, role] = parts.as_slice() else {
        return false;
    };
    let name = role.strip_prefix("role/").unwrap_or_default();
    let aws = *partition == "aws" || partition.starts_with("aws-");
    aws && is_account(account) && consists_of(name, 576, "+=,.@-_/") && !name.ends_with('/')
}

fn is_queue_name(text: &str) -> bool {
    let name = text.strip_suffix(".fifo").unwrap_or(text);
    text.len() <= QUEUE_MAX && consists_of(name, QUEUE_MAX, "-_")
}

fn is_https(text: &str) -> bool {
    let Some(rest) = text.strip_prefix("https://") else {
        return false;
    };
    let host = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let host = host.rsplit_once(':').map_or(host, |(host, _)| host);
    !host.is_empty()
        && !host.contains('@')
        && rest
            .chars()
            .all(|c| c.is_ascii_graphic() && !matches!(c, '"' | '\'' | '\\' | '<' | '>' | '`'))
}

/// Returns whether a string is a URL with one of these schemes, a host and a port.
fn is_service(text: &str, schemes: &[&str]) -> bool {
    let rest = schemes.iter().find_map(|scheme| text.strip_prefix(scheme));
    rest.is_some_and(|rest| is_https(&format!("https://{rest}")) && has_port(rest))
}

fn has_port(host: &str) -> bool {
    let port = host.trim_end_matches('/').rsplit_once(':');
    port.is_some_and(|(_, port)| port.parse::<u16>().is_ok_and(|number| number > 0))
}

fn is_cidr(text: &str) -> bool {
    let Some((address, bits)) = text.split_once('/') else {
        return false;
    };
    let max = match address.parse() {
        Ok(IpAddr::V4(_)) => 32,
        Ok(IpAddr::V6(_)) => 128,
        Err(_) => return false,
    };
    let plain = bits.bytes().all(|byte| byte.is_ascii_digit());
    plain && bits.parse::<u8>().is_ok_and(|bits| bits <= max)
}

#[cfg(test)]
mod tests {
    use super::IdFormat;

    /// Each format with strings that have it, and strings that do not.
    const CASES: [(IdFormat, &str, &str); 16] = [
        (
            IdFormat::Alias,
            "al2@latest al2023@v20250801 bottlerocket@v1.2.3 windows2022@latest",
            "al2 @latest al2@ al2:latest AL2@latest ubuntu@latest custom@latest windows2019@v1 \
             al2023@v20250801-and-what-else-is-there",
        ),
        (IdFormat::ImageId, "ami-0", "ami- ami-A my-ami-1 ami-1-2"),
        (IdFormat::Account, "123456789012", "12345678901 1234567890123 12345678901a"),
        (IdFormat::RoleName, "a a+=,.@-_", "a/b a:b"),
        (
            IdFormat::RoleArn,
            "arn:aws:iam::123456789012:role/a/b arn:aws-us-gov:iam::123456789012:role/x",
            "role/x arn:aws:iam::123456789012:role/ arn:aws:iam::1:role/x \
             arn:aws:iam::123456789012:user/x arn:azure:iam::123456789012:role/x",
        ),
        (IdFormat::Parameter, "/a/b a arn:aws:ssm:eu-central-1:123456789012:parameter/a", "$a"),
        (
            IdFormat::Queue,
            "q q.fifo https://sqs.eu-central-1.amazonaws.com/1/q",
            "q.x http://x/q https://",
        ),
        (IdFormat::EksName, "a 1_a-b", "-a a.b"),
        (
            IdFormat::Https,
            "https://a https://10.0.0.1:6443 https://[::1]:1/x",
            "https:// http://a https://u@a https://:1 https://a\"",
        ),
        (IdFormat::Base64, "YQ== YWI= YWJj", "= YQ= YWJ Y!== ===="),
        (IdFormat::Cidr, "10.0.0.0/8 fd00::/108", "10.0.0.0 10.0.0.0/33 a/8 ::/129 10.0.0.0/+8"),
        (
            IdFormat::Proxy,
            "http://bastion:3128 https://10.0.0.1:443/ socks5://[::1]:1080",
            "bastion:3128 http://bastion ftp://a:1 http://me:pw@bastion:3128 http://:1 http://a:0",
        ),
        (
            IdFormat::Endpoint,
            "http://127.0.0.1:4317 https://collector:443/",
            "127.0.0.1:4317 http://collector socks5://a:1 http://me@a:1",
        ),
        (IdFormat::ExternalId, "ab outrigger:prod/1_+=,.@-", "a a$b a\u{e9}"),
        (IdFormat::Version, "v1.33.4+k3s1 1.33", "$(reboot) a;b"),
        (
            IdFormat::ObjectName,
            "a/b kube-system/outrigger-1.x",
            "a /a a/ A/b a/B a.b/c -a/b a/b/c a/b?x",
        ),
    ];

    #[test]
    fn each_format_accepts_and_rejects_its_examples() {
        for (format, valid, invalid) in CASES {
            for text in valid.split_whitespace() {
                assert!(format.is_valid(text), "{format:?} {text:?}");
            }
            for text in invalid.split_whitespace().chain(["", "a b"]) {
                assert!(!format.is_valid(text), "{format:?} {text:?}");
            }
        }
        assert!(IdFormat::Filled.is_valid("a b") && !IdFormat::Filled.is_valid(" "));
    }

    #[test]
    fn invalid_values_get_a_matching_hint() {
        let hint = IdFormat::RoleName.hint_for("arn:aws:iam::123456789012:role/a/b");
        assert_eq!(hint.as_deref(), Some("write \"b\": IAM names are unique, whatever their path"));
        let hint = IdFormat::Alias.hint_for("windows2022@1");
        assert_eq!(hint.as_deref(), Some("the only Windows version is \"windows2022@latest\""));
    }
}
