//! Classifies errors of a cluster's API, with a stable code and a fix.

use std::path::Path;

use crate::host::text;

/// Formats an error as one line with the server, the advice and the code.
pub(crate) fn explain_error(error: &kube::Error, server: &str, kubeconfig: &Path) -> String {
    let message = text::error_chain(error);
    let Some(cause) = ApiErrorCode::from_error(error, &message) else {
        return format!("{message} ({server})");
    };
    cause.describe_error(&message, server, kubeconfig)
}

/// The cause of an API error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ApiErrorCode {
    /// DNS cannot resolve the host.
    NoHost,
    /// The connection is refused.
    Refused,
    /// The CA of the server's certificate is not trusted.
    Untrusted,
    /// The server's certificate has expired.
    Expired,
    /// The server's certificate is not valid yet.
    NotYetValid,
    /// The server's certificate is for a different name.
    OtherName,
    /// The server does not use TLS.
    NoTls,
    /// The TLS handshake failed for a different reason.
    Handshake,
    /// The host is unreachable, or the connection times out.
    NoWay,
    /// No credentials are available.
    Credentials,
    /// The server rejects the credentials (401).
    Unauthorized,
    /// The server denies the request (403).
    Forbidden,
    /// The server responds with a server error, or the response is not one of a Kubernetes API.
    Odd,
    /// The server does not respond in time.
    Silent,
    /// The server responds slowly.
    Slow,
    /// The clocks of the server and of this host differ.
    Clock,
}

impl ApiErrorCode {
    /// The stable code.
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
            Self::NoWay => "api-unreachable",
            Self::Credentials => "api-credentials",
            Self::Unauthorized => "api-unauthorized",
            Self::Forbidden => "api-forbidden",
            Self::Odd => "api-unexpected-response",
            Self::Silent => "api-timeout",
            Self::Slow => "api-slow",
            Self::Clock => "clock-differs",
        }
    }

    /// Formats the error as one line, with advice.
    pub(crate) fn describe_error(self, message: &str, server: &str, kubeconfig: &Path) -> String {
        let (advice, code) = (self.advice(), self.code());
        let kubeconfig = kubeconfig.display();
        format!("{message} ({server}); {advice} ({kubeconfig}) [{code}]")
    }

    /// Returns the check that the user should make first. `outrigger doctor` makes more checks.
    fn advice(self) -> &'static str {
        match self {
            Self::NoHost => "host not found: check the address in the kubeconfig",
            Self::Refused => {
                "connection refused: check that the API server is running, and the address in the \
                 kubeconfig"
            }
            Self::Untrusted | Self::OtherName | Self::NoTls | Self::Handshake => {
                "check the address and certificate-authority-data of the kubeconfig"
            }
            Self::Expired | Self::NotYetValid => {
                "renew the certificate, or correct the clock of \
                                                  this host"
            }
            Self::Credentials => {
                "check the credentials and the exec plugin of the kubeconfig; for EKS, the AWS \
                 credentials of this host"
            }
            Self::Unauthorized => "put valid credentials into the kubeconfig",
            Self::Forbidden => "grant the denied permission to the user of the kubeconfig",
            Self::Odd => "check the API server, or the proxy that responds in its place",
            Self::NoWay | Self::Silent | Self::Slow => {
                "check the network path, firewalls, and the address in the kubeconfig"
            }
            Self::Clock => "correct the clock of this host or of the API server",
        }
    }

    /// Classifies an error message, because intermediate layers wrap causes in their own types.
    /// Returns the code, a description and the fix.
    pub(crate) fn classify_text(message: &str) -> Option<(Self, &'static str, &'static str)> {
        let low = message.to_lowercase();
        let mut all = WORDS.iter();
        let row = all.find(|(_, words, ..)| words.iter().any(|word| low.contains(word)));
        row.map(|(cause, _, why, fix)| (*cause, *why, *fix))
    }

    /// Classifies the error of a call.
    pub(crate) fn from_error(error: &kube::Error, message: &str) -> Option<Self> {
        match error {
            kube::Error::Api(status) => match status.code {
                401 => Some(Self::Unauthorized),
                403 => Some(Self::Forbidden),
                500.. => Some(Self::Odd),
                _ => None,
            },
            kube::Error::Auth(_) => Some(Self::Credentials),
            kube::Error::SerdeError(_) => Some(Self::Odd),
            _ => Self::classify_text(message).map(|(cause, ..)| cause),
        }
    }
}

/// The first entry with a substring of the message applies. Capitalized words in a fix are
/// placeholders for values of this API.
const WORDS: [(ApiErrorCode, &[&str], &str, &str); 12] = [
    (
        ApiErrorCode::Credentials,
        &["find aws credentials", "sign a call to sts"],
        "no AWS credentials found to create tokens",
        "provide AWS credentials to the user outrigger on this host: a role, a profile or a key",
    ),
    (
        ApiErrorCode::Credentials,
        &["exec-plugin", "token file", "refresh a token"],
        "no credentials found",
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
        "the API server rejects the client certificate of the kubeconfig",
        "put a client certificate that the API server accepts into SOURCE's file",
    ),
    (
        ApiErrorCode::NoHost,
        &["dns error", "failed to lookup"],
        "DNS cannot resolve the host",
        "getent hosts NAME; correct SOURCE, or the name resolution of this host",
    ),
    (
        ApiErrorCode::Refused,
        &["connection refused"],
        "connection refused",
        "start the API server, or correct SOURCE",
    ),
    (
        ApiErrorCode::Untrusted,
        &["unknownissuer", "unknown issuer", "unknownca", "badsignature"],
        "its certificate is from a CA that the kubeconfig does not trust",
        "CERTIFICATE; put the CA into certificate-authority-data next to SOURCE",
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
        "its certificate is for a different name",
        "CERTIFICATE; set tls-server-name next to SOURCE to a name in the certificate",
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
        "the TLS handshake failed",
        "CERTIFICATE",
    ),
    (
        ApiErrorCode::NoWay,
        &["timed out", "timeout", "unreachable", "no route", "deadline"],
        "cannot reach the host",
        "allow this host to reach HOST (firewalls, security groups, routes)",
    ),
];

#[cfg(test)]
mod tests {
    use std::path::Path;

    use kube::core::Status;

    use super::explain_error;

    #[test]
    fn api_errors_name_the_server_and_the_cause() {
        let check = |error: &kube::Error, expect: &str| {
            let text = explain_error(error, "https://a:1", Path::new("/k"));
            assert!(text.contains(expect), "{text}");
            assert!(text.contains("https://a:1"), "{text}");
        };
        let service = |text: &str| kube::Error::Service(text.into());
        check(&service("tcp: Connection refused"), "connection refused");
        check(&service("tcp: Connection refused"), "[api-refused]");
        check(&service("invalid peer certificate: Expired"), "[api-expired]");
        let refused = "received fatal alert: CertificateExpired";
        check(&service(refused), "[api-unauthorized]");
        let plugin = "exec-plugin: the exec plugin failed, exit status: 1: no";
        check(&service(plugin), "[api-credentials]");
        let signed = "cannot find AWS credentials: the default chain has none";
        check(&service(signed), "[api-credentials]");
        check(&service("invalid peer certificate"), "certificate-authority-data");
        check(&service("deadline has elapsed"), "firewalls");
        check(&service("odd"), "odd");
        let denied = Status::failure("no", "Forbidden").with_code(403);
        check(&kube::Error::Api(denied.boxed()), "grant the denied");
        let unknown = Status::failure("no", "Unauthorized").with_code(401);
        check(&kube::Error::Api(unknown.boxed()), "[api-unauthorized]");
    }
}
