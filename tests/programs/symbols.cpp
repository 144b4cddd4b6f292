// Much inlined code of the standard library, for comparing names: what it computes does not matter.
#include <algorithm>
#include <functional>
#include <iostream>
#include <map>
#include <numeric>
#include <random>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <unordered_map>
#include <variant>
#include <vector>

namespace shapes {

struct Circle { double radius; };
struct Square { double side; };
struct Named { std::string name; std::vector<double> sides; };
using Shape = std::variant<Circle, Square, Named>;

struct Area {
    double operator()(const Circle &circle) const { return 3.14159 * circle.radius * circle.radius; }
    double operator()(const Square &square) const { return square.side * square.side; }
    double operator()(const Named &named) const { return std::accumulate(named.sides.begin(), named.sides.end(), 0.0); }
};

double total(const std::vector<Shape> &shapes)
{
    double sum = 0;
    for (const Shape &shape : shapes)
        sum += std::visit(Area{}, shape);
    return sum;
}

} // namespace shapes

namespace text {

std::map<std::string, std::set<std::size_t>> index(const std::vector<std::string> &lines)
{
    std::map<std::string, std::set<std::size_t>> found;
    const std::regex word("([[:alpha:]]+)(-[[:alpha:]]+)*");
    for (std::size_t line = 0; line < lines.size(); line++)
        for (std::sregex_iterator at(lines[line].begin(), lines[line].end(), word), end; at != end; ++at)
            found[at->str()].insert(line);
    return found;
}

std::string join(const std::unordered_map<std::string, std::function<int(int)>> &rules, int x)
{
    std::ostringstream out;
    for (const auto &[name, rule] : rules)
        out << name << '=' << rule(x) << ' ';
    return out.str();
}

} // namespace text

template <typename Number, typename Order> Number sorted_middle(std::size_t count, Order order)
{
    std::mt19937_64 random(count);
    std::vector<Number> numbers(count);
    std::generate(numbers.begin(), numbers.end(), [&] { return static_cast<Number>(random() % 1000); });
    std::stable_sort(numbers.begin(), numbers.end(), order);
    std::nth_element(numbers.begin(), numbers.begin() + count / 2, numbers.end(), std::not_fn(order));
    return numbers[count / 2];
}

struct Failed : std::exception {
    const char *what() const noexcept override { return "failed"; }
};

int main(int argc, char **argv)
{
    std::vector<std::string> lines(argv, argv + argc);
    try {
        for (const auto &[word, places] : text::index(lines))
            std::cout << word << ' ' << places.size() << '\n';
        if (argc > 100)
            throw Failed();
    } catch (const std::exception &error) {
        std::cerr << error.what() << '\n';
    }
    std::cout << sorted_middle<int>(1000 + argc, std::less<>()) << sorted_middle<double>(100 + argc, std::greater<>())
              << sorted_middle<unsigned char>(10 + argc, std::less<>()) << '\n'
              << shapes::total({shapes::Circle{1.0 * argc}, shapes::Square{2}, shapes::Named{"n", {1, 2, 3}}}) << '\n'
              << text::join({{"twice", [](int x) { return 2 * x; }}, {"more", [argc](int x) { return x + argc; }}}, 3);
}
