// Command kvlint is the project's linter: the analyzers that are worth their build time, in one binary that `go vet -vettool` runs,
// so that results are cached per package and every package is type-checked once for all of them.
//
// An exception stands beside the code as `//lint:ignore CHECK reason`, on the line itself or the one above. A directive without a reason,
// or one that excuses nothing, is reported.
package main

import (
	"fmt"
	"go/token"
	"reflect"
	"slices"
	"strings"

	"github.com/kisielk/errcheck/errcheck"
	"github.com/ldez/usetesting"
	"github.com/nishanths/exhaustive/passes/exhaustive"
	"github.com/polyfloyd/go-errorlint/errorlint"
	"go-simpler.org/sloglint"
	"golang.org/x/tools/go/analysis"
	"golang.org/x/tools/go/analysis/passes/nilness"
	"golang.org/x/tools/go/analysis/passes/unusedwrite"
	"golang.org/x/tools/go/analysis/unitchecker"
	"honnef.co/go/tools/analysis/lint"
	"honnef.co/go/tools/simple"
	"honnef.co/go/tools/staticcheck"
	"honnef.co/go/tools/stylecheck"
	"honnef.co/go/tools/unused"
)

// off lists the checks of honnef.co/go/tools that are not run, each with its reason.
var off = map[string]string{
	"ST1000": "internal/archtest asks for more: exactly one package comment",
	"ST1003": "names follow the field's and SGLang's words, which its initialisms do not know",
	"ST1023": "a redundant type in a declaration is sometimes the documentation",
	"SA9003": "an empty branch with a comment can be the clearest way to say that nothing is to be done",
}

// unchecked lists the calls whose error may be dropped, each with its reason.
var unchecked = map[string]string{
	"(io.Closer).Close":           "closing a connection or a file that was only read: what could be lost was reported by the read or write before",
	"(net.Conn).Close":            "as io.Closer",
	"(*net.TCPConn).Close":        "as io.Closer",
	"(*net.UnixConn).Close":       "as io.Closer",
	"(net.Listener).Close":        "as io.Closer",
	"(*net.TCPListener).Close":    "as io.Closer",
	"(*net.UnixListener).Close":   "as io.Closer",
	"(io.ReadCloser).Close":       "as io.Closer",
	"(net.Conn).SetDeadline":      "fails only on a closed connection, which the next read or write reports",
	"(net.Conn).SetReadDeadline":  "as SetDeadline",
	"(net.Conn).SetWriteDeadline": "as SetDeadline",
	"fmt.Fprint":                  "printing to a terminal, a log or a response whose reader may have left; where it matters the writer is a bufio.Writer and Flush is checked",
	"fmt.Fprintf":                 "as fmt.Fprint",
	"fmt.Fprintln":                "as fmt.Fprint",
}

func main() {
	set(&exhaustive.Analyzer.Flags, "d", "true") // a default branch is the author's word that the rest is alike
	errors := errorlint.NewAnalyzer()
	set(&errors.Flags, "errorf", "true")
	testing := usetesting.NewAnalyzer()
	set(&testing.Flags, "ossetenv", "true")
	logs := sloglint.New(&sloglint.Options{NoGlobalLogger: "all", NoMixedArguments: true, StaticMessage: true, KeyNamingCase: "snake"})

	all := []*analysis.Analyzer{nilness.Analyzer, unusedwrite.Analyzer, exhaustive.Analyzer, errors, testing, logs, errs, dead, directives}
	for _, as := range [][]*lint.Analyzer{staticcheck.Analyzers, simple.Analyzers, stylecheck.Analyzers} {
		for _, a := range as {
			if _, skip := off[a.Analyzer.Name]; !skip {
				all = append(all, a.Analyzer)
			}
		}
	}
	for _, a := range all {
		excusable(a)
	}
	unitchecker.Main(all...)
}

func set(flags interface {
	Set(name, value string) error
}, name, value string) {
	if err := flags.Set(name, value); err != nil {
		panic(fmt.Sprintf("kvlint: flag %s: %v", name, err)) // a pinned analyzer lost a flag: found at the first run after an upgrade
	}
}

// errs reports what errcheck found, less the calls in unchecked. Deferred and plain calls are treated alike.
var errs = &analysis.Analyzer{
	Name: "errs", Doc: "errors that nobody looks at (errcheck, less the listed calls)", Requires: []*analysis.Analyzer{quiet(errcheck.Analyzer)},
	Run: func(pass *analysis.Pass) (any, error) {
		for _, e := range pass.ResultOf[errcheck.Analyzer].(errcheck.Result).UncheckedErrors {
			if _, ok := unchecked[e.FuncName]; ok {
				continue
			}
			pass.Reportf(position(pass, e.Pos), "error of %s is not looked at", e.FuncName)
		}
		return nil, nil
	},
}

// dead reports what nothing in the package uses, its tests included (staticcheck's U1000, which has no diagnostics of its own).
var dead = &analysis.Analyzer{
	Name: "U1000", Doc: "unused code", Requires: []*analysis.Analyzer{unused.Analyzer.Analyzer},
	Run: func(pass *analysis.Pass) (any, error) {
		for _, o := range pass.ResultOf[unused.Analyzer.Analyzer].(unused.Result).Unused {
			pass.Reportf(position(pass, o.Position), "%s %s is unused", o.Kind, o.Name)
		}
		return nil, nil
	},
}

// quiet keeps an analyzer's result and drops its diagnostics.
func quiet(a *analysis.Analyzer) *analysis.Analyzer {
	run := a.Run
	a.Run = func(pass *analysis.Pass) (any, error) {
		p := *pass
		p.Report = func(analysis.Diagnostic) {}
		return run(&p)
	}
	return a
}

// position is the token.Pos of a resolved position in one of the pass's files.
func position(pass *analysis.Pass, at token.Position) token.Pos {
	for _, f := range pass.Files {
		if tf := pass.Fset.File(f.FileStart); tf != nil && tf.Name() == at.Filename && at.Offset <= tf.Size() {
			return tf.Pos(at.Offset)
		}
	}
	return pass.Files[0].Package
}

// directive is one `//lint:ignore` comment.
type directive struct {
	file   string
	line   int
	checks []string
	reason string
	pos    token.Pos
}

// directives holds the directives of a package and reports those without a reason.
var directives = &analysis.Analyzer{
	Name: "lintdirective", Doc: "//lint:ignore directives", ResultType: reflect.TypeFor[[]directive](),
	Run: func(pass *analysis.Pass) (any, error) {
		var out []directive
		for _, f := range pass.Files {
			for _, g := range f.Comments {
				for _, c := range g.List {
					rest, ok := strings.CutPrefix(c.Text, "//lint:ignore ")
					if !ok {
						continue
					}
					checks, reason, _ := strings.Cut(strings.TrimSpace(rest), " ")
					at := pass.Fset.Position(c.Pos())
					if strings.TrimSpace(reason) == "" {
						pass.Reportf(c.Pos(), "//lint:ignore %s gives no reason", checks)
					}
					out = append(out, directive{at.Filename, at.Line, strings.Split(checks, ","), reason, c.Pos()})
				}
			}
		}
		return out, nil
	},
}

// excusable makes an analyzer heed the directives that name it, and reports those that excuse nothing.
func excusable(a *analysis.Analyzer) {
	if a == directives {
		return
	}
	a.Requires = append(slices.Clone(a.Requires), directives)
	run := a.Run
	a.Run = func(pass *analysis.Pass) (any, error) {
		var mine []directive
		for _, d := range pass.ResultOf[directives].([]directive) {
			if slices.Contains(d.checks, a.Name) {
				mine = append(mine, d)
			}
		}
		used := make([]bool, len(mine))
		p := *pass
		p.Report = func(d analysis.Diagnostic) {
			at := pass.Fset.Position(d.Pos)
			for i, m := range mine {
				if m.file == at.Filename && (m.line == at.Line || m.line+1 == at.Line) {
					used[i] = true
					return
				}
			}
			pass.Report(d)
		}
		result, err := run(&p)
		for i, m := range mine {
			if !used[i] && err == nil {
				pass.Reportf(m.pos, "//lint:ignore %s excuses nothing", a.Name)
			}
		}
		return result, err
	}
}
