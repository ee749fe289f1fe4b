// Renders a chart's templates as Helm does, as far as this project's chart goes: Go's own template language and the
// handful of functions that the templates use. For tests on machines without Helm.
//
// Reads {"templates": {name: text}, "data": {...}} and writes {name: text}.
package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"reflect"
	"strings"
	"text/template"
)

type request struct {
	Templates map[string]string      `json:"templates"`
	Data      map[string]interface{} `json:"data"`
}

func main() {
	var asked request
	if err := json.NewDecoder(os.Stdin).Decode(&asked); err != nil {
		fail(err)
	}
	root := template.New("chart").Option("missingkey=zero")
	root.Funcs(template.FuncMap{
		"include": func(name string, data interface{}) (string, error) {
			var out bytes.Buffer
			err := root.ExecuteTemplate(&out, name, data)
			return out.String(), err
		},
		"toYaml":    toYaml,
		"nindent":   func(n int, text string) string { return "\n" + indent(n, text) },
		"indent":    indent,
		"quote":     func(value interface{}) string { return fmt.Sprintf("%q", fmt.Sprint(value)) },
		"default":   fallback,
		"required":  required,
		"sha256sum": func(text string) string { return fmt.Sprintf("%x", sha256.Sum256([]byte(text))) },
	})
	for name, text := range asked.Templates {
		if _, err := root.New(name).Parse(text); err != nil {
			fail(err)
		}
	}
	rendered := map[string]string{}
	for name := range asked.Templates {
		var out bytes.Buffer
		if err := root.ExecuteTemplate(&out, name, asked.Data); err != nil {
			fail(err)
		}
		rendered[name] = out.String()
	}
	json.NewEncoder(os.Stdout).Encode(rendered)
}

// JSON is YAML on one line.
func toYaml(value interface{}) (string, error) {
	text, err := json.Marshal(value)
	return string(text), err
}

func indent(n int, text string) string {
	pad := strings.Repeat(" ", n)
	return pad + strings.ReplaceAll(text, "\n", "\n"+pad)
}

func fallback(other, value interface{}) interface{} {
	if isEmpty(value) {
		return other
	}
	return value
}

func required(message string, value interface{}) (interface{}, error) {
	if isEmpty(value) {
		return nil, errors.New(message)
	}
	return value, nil
}

func isEmpty(value interface{}) bool {
	return value == nil || reflect.ValueOf(value).IsZero()
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}
