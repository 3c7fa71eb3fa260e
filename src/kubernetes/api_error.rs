//! Why the API of a cluster cannot be used, by a stable name, and what would put it right.
//! It must not know what was asked for.

use std::path::Path;

use crate::host::text;

/// What went wrong, where, and what to check, in one line.
pub(crate) fn explained(error: &kube::Error, server: &str, kubeconfig: &Path) -> String {
    let what = text::chain(error);
    let Some(cause) = ApiErrorCode::of(error, &what) else {
        return format!("{what} ({server})");
    };
    cause.told(&what, server, kubeconfig)
}

/// What is wrong with the way to an API, or with its answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ApiErrorCode {
    /// No name server knows the host.
    NoHost,
    /// Nothing listens there.
    Refused,
    /// Its certificate is from an authority that nobody has named.
    Untrusted,
    /// Its certificate has expired.
    Expired,
    /// Its certificate is not valid yet.
    NotYetValid,
    /// Its certificate is for another name.
    OtherName,
    /// It does not speak TLS.
    NoTls,
    /// The handshake of TLS failed for another reason.
    Handshake,
    /// No way leads there, or none that is fast enough.
    NoWay,
    /// Nobody gives credentials for it.
    Credentials,
    /// It does not know the user.
    Unauthorized,
    /// It does not let the user do this.
    Forbidden,
    /// It answers with an error, or as no Kubernetes API does.
    Odd,
    /// It does not answer in time.
    Silent,
    /// It answers slowly.
    Slow,
    /// Its clock and the clock of this host differ.
    Clock,
}

impl ApiErrorCode {
    /// The stable name.
    pub(crate) fn code(self) -> &'static str {
        match self {
            Self::NoHost => "api-no-host",
            Self::Refused => "api-refused",
            Self::Untrusted => "api-untrusted",
            Self::Expired => "api-expired",
            Self::NotYetValid => "api-not-yet-valid",
            Self::OtherName => "api-other-name",
            Self::NoTls => "api-no-tls",
            Self::Handshake => "api-handshake",
            Self::NoWay => "api-no-way",
            Self::Credentials => "api-credentials",
            Self::Unauthorized => "api-unauthorized",
            Self::Forbidden => "api-forbidden",
            Self::Odd => "api-odd",
            Self::Silent => "api-silent",
            Self::Slow => "api-slow",
            Self::Clock => "clock-differs",
        }
    }

    /// What went wrong there, with what to check, in one line.
    pub(crate) fn told(self, what: &str, server: &str, kubeconfig: &Path) -> String {
        let (advice, code) = (self.advice(), self.code());
        let kubeconfig = kubeconfig.display();
        format!("{what} ({server}); {advice} ({kubeconfig}) [{code}]")
    }

    /// What to check first. `outrigger doctor` looks closer.
    fn advice(self) -> &'static str {
        match self {
            Self::NoHost => "no such host: check the address in the kubeconfig",
            Self::Refused => {
                "nothing listens there: check that the API server runs and the kubeconfig's address"
            }
            Self::Untrusted | Self::OtherName | Self::NoTls | Self::Handshake => {
                "check the address and certificate-authority-data of the kubeconfig"
            }
            Self::Expired | Self::NotYetValid => "renew the certificate, or set this host's clock",
            Self::Credentials => {
                "check the credentials in the kubeconfig and the plugin it names; for EKS this \
                 host's of AWS"
            }
            Self::Unauthorized => "write credentials that this API accepts into the kubeconfig",
            Self::Forbidden => "grant the user of the kubeconfig what it is denied here",
            Self::Odd => "look for what is wrong with the API server, or what answers in its place",
            Self::NoWay | Self::Silent | Self::Slow => {
                "check the way there, firewalls included, and the address in the kubeconfig"
            }
            Self::Clock => "set the clock of this host, or that of the API server",
        }
    }

    /// Why an API is not reached, from the words of whoever noticed, since layers between wrap
    /// causes in types of their own; with the sentence for people, and the fix.
    pub(crate) fn of_words(what: &str) -> Option<(Self, &'static str, &'static str)> {
        let low = what.to_lowercase();
        let mut all = WORDS.iter();
        let row = all.find(|(_, words, ..)| words.iter().any(|own| low.contains(own)));
        row.map(|(cause, _, why, fix)| (*cause, *why, *fix))
    }

    /// Why a call has failed.
    pub(crate) fn of(error: &kube::Error, what: &str) -> Option<Self> {
        match error {
            kube::Error::Api(status) => match status.code {
                401 => Some(Self::Unauthorized),
                403 => Some(Self::Forbidden),
                500.. => Some(Self::Odd),
                _ => None,
            },
            kube::Error::Auth(_) => Some(Self::Credentials),
            kube::Error::SerdeError(_) => Some(Self::Odd),
            _ => Self::of_words(what).map(|(cause, ..)| cause),
        }
    }
}

/// The first row counts of which one word is there. In a fix, what is in capitals stands for what
/// it is of this API.
const WORDS: [(ApiErrorCode, &[&str], &str, &str); 12] = [
    (
        ApiErrorCode::Credentials,
        &["find aws credentials", "sign a call to sts"],
        "AWS credentials make the tokens for it, and there are none",
        "give the user outrigger of this host AWS credentials: a role, a profile or a key",
    ),
    (
        ApiErrorCode::Credentials,
        &["exec-plugin", "token file", "refresh a token"],
        "nobody gives credentials for it",
        "run the plugin of SOURCE by hand, as the user outrigger",
    ),
    (
        ApiErrorCode::Unauthorized,
        &[
            "fatal alert: certificate",
            "fatal alert: badcertificate",
            "fatal alert: unknownca",
            "fatal alert: accessdenied",
        ],
        "it refuses the certificate that the kubeconfig shows",
        "write a client certificate that this API takes into SOURCE's file",
    ),
    (
        ApiErrorCode::NoHost,
        &["dns error", "failed to lookup"],
        "no name server knows the host",
        "getent hosts NAME; correct SOURCE, or have this host resolve the name",
    ),
    (
        ApiErrorCode::Refused,
        &["connection refused"],
        "nothing listens there",
        "start the API server, or correct SOURCE",
    ),
    (
        ApiErrorCode::Untrusted,
        &[
            "unknownissuer",
            "unknown issuer",
            "unknownca",
            "badsignature",
        ],
        "its certificate is from an authority that the kubeconfig does not know",
        "CERTIFICATE; put the CA into certificate-authority-data beside SOURCE",
    ),
    (
        ApiErrorCode::Expired,
        &["expired"],
        "its certificate has expired",
        "kubeadm certs renew apiserver on the control plane; timedatectl on this host, if its \
         clock is wrong",
    ),
    (
        ApiErrorCode::NotYetValid,
        &["notvalidyet", "not valid yet"],
        "its certificate is not valid yet",
        "timedatectl set-ntp true on this host, if its clock is behind",
    ),
    (
        ApiErrorCode::OtherName,
        &["not valid for", "notvalidforname"],
        "its certificate is for another name",
        "CERTIFICATE; write a name that it has as tls-server-name beside SOURCE",
    ),
    (
        ApiErrorCode::NoTls,
        &["corrupt message", "invalidcontenttype"],
        "it does not speak TLS",
        "correct the scheme or the port of SOURCE",
    ),
    (
        ApiErrorCode::Handshake,
        &["certificate", "alert", "tls", "handshake"],
        "the handshake of TLS failed",
        "CERTIFICATE",
    ),
    (
        ApiErrorCode::NoWay,
        &[
            "timed out",
            "timeout",
            "unreachable",
            "no route",
            "deadline",
        ],
        "no way leads there",
        "let this host reach HOST (firewalls, security groups, routes)",
    ),
];

#[cfg(test)]
mod tests {
    use std::path::Path;

    use kube::core::Status;

    use super::explained;

    #[test]
    fn an_error_says_where_it_came_from_and_what_to_check() {
        let check = |error: &kube::Error, expect: &str| {
            let text = explained(error, "https://a:1", Path::new("/k"));
            assert!(text.contains(expect), "{text}");
            assert!(text.contains("https://a:1"), "{text}");
        };
        let service = |text: &str| kube::Error::Service(text.into());
        check(&service("tcp: Connection refused"), "nothing listens there");
        check(&service("tcp: Connection refused"), "[api-refused]");
        check(
            &service("invalid peer certificate: Expired"),
            "[api-expired]",
        );
        let refused = "received fatal alert: CertificateExpired";
        check(&service(refused), "[api-unauthorized]");
        let plugin = "exec-plugin: its plugin failed, exit status: 1: no";
        check(&service(plugin), "[api-credentials]");
        let signed = "find AWS credentials: the default chain has none";
        check(&service(signed), "[api-credentials]");
        check(
            &service("invalid peer certificate"),
            "certificate-authority-data",
        );
        check(&service("deadline has elapsed"), "firewalls");
        check(&service("odd"), "odd");
        let denied = Status::failure("no", "Forbidden").with_code(403);
        check(&kube::Error::Api(denied.boxed()), "grant the user");
        let unknown = Status::failure("no", "Unauthorized").with_code(401);
        check(&kube::Error::Api(unknown.boxed()), "[api-unauthorized]");
    }
}
