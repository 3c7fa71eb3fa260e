//! Enums whose variants have fixed names.

/// Declares an enum with a name for each variant, as it is spelled in configurations, labels, logs
/// or metrics. It adds `ALL`, `NAMES`, `as_str` and `parse`.
macro_rules! named_enum {
    (
        $(#[$meta:meta])*
        $vis:vis enum $name:ident { $($(#[$attr:meta])* $variant:ident => $text:literal,)* }
    ) => {
        $(#[$meta])*
        $vis enum $name {
            $($(#[$attr])* $variant,)*
        }

        impl $name {
            /// All variants, in order.
            pub const ALL: [Self; [$($text),*].len()] = [$(Self::$variant),*];

            /// The names of all variants, in order.
            pub const NAMES: [&'static str; Self::ALL.len()] = [$($text),*];

            /// The name.
            pub fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $text,)*
                }
            }

            /// Parses a name.
            pub fn parse(text: &str) -> Option<Self> {
                match text {
                    $($text => Some(Self::$variant),)*
                    _ => None,
                }
            }
        }
    };
}

pub(crate) use named_enum;
